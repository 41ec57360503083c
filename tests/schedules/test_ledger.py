"""Accepted prefixes, progress and the best draft length, against numbers worked out by hand (contract 0x05)."""

import itertools

import pytest

from hf_exactassist.ledger import best_length, expected_progress, survival


FRONT, BACK = [0.95, 0.90, 0.60, 0.40], [0.40, 0.60, 0.90, 0.95]


def test_survival_multiplies_rates_of_what_was_reached():
    """0x05A."""
    assert survival([0.5, 0.4, 1.0]) == pytest.approx([0.5, 0.2, 0.2])
    assert survival([]) == []


def test_equal_means_unequal_progress():
    """0x05E: what is accepted early counts for everything behind it."""
    assert sum(FRONT) == pytest.approx(sum(BACK))
    front, back = expected_progress(FRONT), expected_progress(BACK)
    assert front == pytest.approx([1, 1.95, 2.805, 3.318, 3.5232])
    assert back == pytest.approx([1, 1.4, 1.64, 1.856, 2.0612])


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 1.0])
def test_one_rate_gives_the_closed_form(alpha):
    """0x05D, with the limit for a rate of 1."""
    found = expected_progress([alpha] * 6)
    assert found == pytest.approx([sum(alpha**i for i in range(k + 1)) for k in range(7)])


def test_progress_is_the_mean_of_walked_rounds():
    """0x05B: accepted tokens and the one after them, over every outcome of every test."""
    total = 0.0
    for outcome in itertools.product([True, False], repeat=4):
        mass = 1.0
        for rate, kept in zip(FRONT, outcome, strict=True):
            mass *= rate if kept else 1 - rate
        total += mass * (next((i for i, kept in enumerate(outcome) if not kept), 4) + 1)
    assert expected_progress(FRONT)[4] == pytest.approx(total)


def test_best_length_is_inside_where_drafts_cost():
    """0x05F: long drafts of a good drafter stop paying, and no draft pays where the drafter costs too much."""
    costs = [1 + 0.2 * k for k in range(5)]
    assert best_length(expected_progress(FRONT), costs) == 3
    assert best_length(expected_progress(BACK), costs) == 2
    assert best_length(expected_progress([0.1] * 4), costs) == 0
    assert best_length(expected_progress([1.0] * 4), [1 + k for k in range(5)]) == 0


@pytest.mark.parametrize("rates", [[1.2], [-0.1], [0.5, float("nan")]])
def test_rates_that_are_none(rates):
    with pytest.raises(ValueError, match="between 0 and 1"):
        survival(rates)


@pytest.mark.parametrize(
    ("progress", "costs", "why"),
    [
        ([1, 2], [1], "One cost for each"),
        ([], [], "One cost for each"),
        ([0, 1], [1, 2], "at least one token"),
        ([1, 2], [1, 0], "costs something"),
        ([1, 2], [1, -1], "costs something"),
    ],
)
def test_ledgers_that_make_no_sense(progress, costs, why):
    with pytest.raises(ValueError, match=why):
        best_length(progress, costs)
