"""What rounds publish, against numbers worked out by hand and every outcome walked (contract 0x05A to 0x05E)."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_exactassist.ledger import (
    expected_accepted,
    progress_by_length,
    round_progress,
    survival,
    uniform_progress,
    unstopped_survival,
)
from tests.ledger.test_prefixes import BACK, FRONT


REJECTED, ENDS, GOES_ON = range(3)


def test_accepted_tokens_are_the_sum_of_the_tails():
    """0x05A."""
    assert expected_accepted(survival(FRONT)) == pytest.approx(2.5232)
    assert expected_accepted(survival(BACK)) == pytest.approx(1.0612)
    assert expected_accepted([]) == 0
    with pytest.raises(ValueError, match="rises"):
        expected_accepted(BACK)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_accepted_tokens_of_one_rate(alpha):
    """0x05A: the geometric sum."""
    assert expected_accepted(survival([alpha] * 5)) == pytest.approx(alpha * (1 - alpha**5) / (1 - alpha))


def test_equal_means_unequal_progress():
    """0x05E: what is accepted early counts for everything behind it."""
    assert progress_by_length(survival(FRONT)) == pytest.approx([1, 1.95, 2.805, 3.318, 3.5232])
    assert progress_by_length(survival(BACK)) == pytest.approx([1, 1.4, 1.64, 1.856, 2.0612])


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 1 - 1e-12, 1.0])
def test_one_rate_gives_the_closed_form(alpha):
    """0x05D, with the limit for a rate of 1."""
    closed = 7 if alpha > 0.9 else (1 - alpha**7) / (1 - alpha)
    assert uniform_progress(alpha, 6) == pytest.approx(closed, rel=1e-10)
    assert uniform_progress(alpha, 0) == 1


@pytest.mark.parametrize(
    ("accepted", "stop", "tokens"), [(0, None, 1), (3, None, 4), (3, 5, 4), (3, 4, 4), (3, 2, 2), (0, 1, 1)]
)
def test_a_round_ends_at_its_stop(accepted, stop, tokens):
    """0x05B: an accepted stop token is followed by nothing, nor is a used-up budget."""
    assert round_progress(accepted, stop) == tokens


def test_stops_and_budgets_shorten_rounds():
    """0x05B. The first draft token is accepted and no end with 0.8 * 0.75, the second with 0.5 then."""
    surviving = unstopped_survival([0.8, 0.5], [0.25, 0.0])
    assert surviving == pytest.approx([0.6, 0.3])
    assert progress_by_length(surviving) == pytest.approx([1, 1.6, 1.9])
    assert progress_by_length(surviving, budget=2) == pytest.approx([1, 1.6, 1.6])
    assert progress_by_length(surviving, budget=1) == [1, 1, 1]
    # only positions behind can lose by a stop
    assert progress_by_length(unstopped_survival([0.8, 0.5], [0.0, 1.0])) == pytest.approx([1, 1.8, 1.8])


@given(
    st.lists(st.tuples(st.floats(0.05, 1), st.floats(0, 0.9)), max_size=5),
    st.none() | st.integers(1, 7),
)
def test_progress_is_the_mean_of_walked_rounds(positions, budget):
    """0x05B: accepted tokens and the one after them, cut at the first stop, over every outcome of every test."""
    total = 0.0
    for outcome in itertools.product([REJECTED, ENDS, GOES_ON], repeat=len(positions)):
        mass = 1.0
        for (rate, stop), kind in zip(positions, outcome, strict=True):
            mass *= {REJECTED: 1 - rate, ENDS: rate * stop, GOES_ON: rate * (1 - stop)}[kind]
        accepted = next((i for i, kind in enumerate(outcome) if kind == REJECTED), len(outcome))
        ends = [i for i, kind in enumerate(outcome[:accepted], 1) if kind == ENDS]
        if budget is not None:
            ends.append(budget)
        total += mass * round_progress(accepted, min(ends, default=None))
    surviving = unstopped_survival([rate for rate, _ in positions], [stop for _, stop in positions])
    assert progress_by_length(surviving, budget)[-1] == pytest.approx(total)


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (lambda: round_progress(-1), "counted from 0"),
        (lambda: round_progress(2, 0), "at least one token"),
        (lambda: progress_by_length([0.5], budget=0), "at least one token"),
        (lambda: progress_by_length(BACK), "rises"),
        (lambda: unstopped_survival([0.5], []), "1 rates and 0"),
        (lambda: unstopped_survival([0.5], [1.5]), "Stop probabilities lie between 0 and 1"),
        (lambda: unstopped_survival([0.5, 0.5], [1.0, 0.0]), "no prefix reaches it"),
        (lambda: uniform_progress(1.1, 2), "between 0 and 1"),
        (lambda: uniform_progress(0.5, -1), "no -1 tokens"),
    ],
)
def test_progress_that_makes_no_sense(refused, why):
    with pytest.raises(ValueError, match=why):
        refused()
