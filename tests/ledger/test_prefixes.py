"""Accepted prefixes, against numbers worked out by hand (contract 0x05A, 0x05E)."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_exactassist.ledger import (
    counted_rates,
    counted_survival,
    observed_rates,
    prefix_law,
    reach_rates,
    survival,
)


FRONT, BACK = [0.95, 0.90, 0.60, 0.40], [0.40, 0.60, 0.90, 0.95]
RATES = st.lists(st.floats(0.05, 1), max_size=8)


def test_survival_multiplies_rates():
    assert survival([0.5, 0.4, 1.0]) == pytest.approx([0.5, 0.2, 0.2])
    assert survival([]) == []
    assert survival([0.5, 0.0, 0.0]) == [0.5, 0.0, 0.0]


def test_equal_means_unequal_tails():
    """0x05E: only the last tail is the same, as it has all rates in it."""
    assert sum(FRONT) == pytest.approx(sum(BACK))
    front, back = survival(FRONT), survival(BACK)
    assert front == pytest.approx([0.95, 0.855, 0.513, 0.2052])
    assert back == pytest.approx([0.40, 0.24, 0.216, 0.2052])
    assert prefix_law(front) == pytest.approx([0.05, 0.095, 0.342, 0.3078, 0.2052])
    assert prefix_law(back) == pytest.approx([0.60, 0.16, 0.024, 0.0108, 0.2052])


def test_the_law_of_the_prefix_assumes_nothing():
    assert prefix_law([]) == [1.0]
    assert prefix_law([0.8, 0.8, 0.1]) == pytest.approx([0.2, 0.0, 0.7, 0.1])


@given(RATES)
def test_the_law_is_that_of_walked_drafts(rates):
    """Every outcome of every test."""
    law = [0.0] * (len(rates) + 1)
    for outcome in itertools.product([True, False], repeat=len(rates)):
        mass = 1.0
        for rate, kept in zip(rates, outcome, strict=True):
            mass *= rate if kept else 1 - rate
        law[next((i for i, kept in enumerate(outcome) if not kept), len(rates))] += mass
    assert prefix_law(survival(rates)) == pytest.approx(law)


@given(RATES)
def test_rates_come_back(rates):
    assert reach_rates(survival(rates)) == pytest.approx(rates)


def test_rates_end_where_nothing_reaches():
    assert reach_rates([0.8, 0.4, 0.1]) == pytest.approx([0.8, 0.5, 0.25])
    assert reach_rates([0.5, 0.0, 0.0]) == [0.5, 0.0]


def test_rates_count_where_a_position_is_reached():
    """Of four drafts two fail at once; what stands behind would have failed too, or not: it does not matter."""
    assert counted_rates([4, 2], [2, 2]) == [0.5, 1.0]
    assert survival(counted_rates([4, 2], [2, 2])) == counted_survival([4, 4], [2, 2]) == [0.5, 0.5]
    # over all rows the second position may look like 0.5, which would make 0.25 of the tail
    with pytest.raises(ValueError, match="Position 2 counts 4 tests where 2 prefixes reach it"):
        counted_rates([4, 4], [2, 2])
    assert counted_rates([4, 2, 0], [2, 0, 0]) == [0.5, 0.0]


def test_rates_of_single_rounds():
    rounds = [
        (3, 3, 4),
        # the first rejection is a test, what stands behind it is none
        (3, 1, 2),
        # a shorter draft says nothing of the third position
        (2, 2, 3),
        # the second accepted token ended the text
        (3, 2, 2),
        # and so did the first, of three
        (3, 3, 1),
        (0, 0, 1),
    ]
    # reached 5, 4, 1 times; kept 5, 3, 1
    assert observed_rates(rounds) == [1.0, 0.75, 1.0]
    assert observed_rates([]) == []


def test_counted_survival_never_rises():
    assert counted_survival([10, 10, 8], [8, 4, 2]) == [0.8, 0.4, 0.25]
    # only the best rounds got to the third position
    assert counted_survival([10, 10, 2], [8, 4, 2]) == [0.8, 0.4, 0.4]
    assert counted_survival([10, 0], [5, 0]) == [0.5]
    assert counted_survival([], []) == []


@pytest.mark.parametrize("rates", [[1.2], [-0.1], [0.5, float("nan")]])
def test_rates_that_are_none(rates):
    with pytest.raises(ValueError, match="between 0 and 1"):
        survival(rates)


@pytest.mark.parametrize("rates", [[0.0, 0.7], [0.5, 0.0, 0.0, 0.2]])
def test_rates_of_positions_that_no_prefix_reaches(rates):
    with pytest.raises(ValueError, match="no prefix reaches it"):
        survival(rates)


@pytest.mark.parametrize("use", [reach_rates, prefix_law])
@pytest.mark.parametrize(
    ("surviving", "why"),
    [(BACK, "rises from 0.4 to 0.6 at position 2"), ([1.1], "between 0 and 1"), ([float("nan")], "between 0 and 1")],
)
def test_survival_that_is_none(use, surviving, why):
    with pytest.raises(ValueError, match=why):
        use(surviving)


@pytest.mark.parametrize("use", [counted_rates, counted_survival])
@pytest.mark.parametrize(
    ("tried", "accepted", "why"),
    [
        ([4], [5], "cannot be accepted 5 times of 4"),
        ([4], [-1], "cannot be accepted -1 times of 4"),
        ([4], [], "got 1 and 0"),
    ],
)
def test_counts_that_make_no_sense(use, tried, accepted, why):
    with pytest.raises(ValueError, match=why):
        use(tried, accepted)


def test_drafts_counted_behind_a_rejection():
    with pytest.raises(ValueError, match="Position 2 is accepted 3 times and the one before it 2"):
        counted_survival([4, 4], [2, 3])


@pytest.mark.parametrize(
    "one",
    [
        # the token after the accepted ones is missing, without a stop there would be nothing
        (3, 0, 0),
        (3, 1, 3),
        (2, 3, 4),
        (2, -1, 1),
    ],
)
def test_rounds_that_cannot_be(one):
    with pytest.raises(ValueError, match="cannot publish"):
        observed_rates([one])
