"""Costs against progress, by hand (contract 0x05C to 0x05F)."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_exactassist.ledger import (
    CostParts,
    best_length,
    break_even_acceptance,
    leviathan_speedup,
    prefix_law,
    progress_by_length,
    speedup,
    survival,
    time_per_token,
    uniform_progress,
)
from tests.ledger.test_prefixes import BACK, FRONT


# reach-conditioned acceptance that falls with depth, rises, and dips once
PROFILES = {
    "falling": [0.95, 0.92, 0.88, 0.80, 0.65, 0.45, 0.30, 0.20],
    "rising": [0.50, 0.60, 0.70, 0.80, 0.85, 0.90, 0.95, 0.95],
    "dipping": [0.90, 0.90, 0.30, 0.90, 0.90, 0.90, 0.90, 0.90],
}


def model(length, rows):
    """A plain step costs 1, ten draft tokens too. Wide forwards, bookkeeping and waiting grow with the draft."""
    return CostParts(
        draft=0.1 * length, verify=1 + 0.02 * length, state=0.05 * (length > 0), queue=0.01 * (rows - 1) * length
    )


# --- time per token


def test_parts_add_up():
    assert CostParts(0.4, 1.1, 0.25, 0.125).total == pytest.approx(1.875)
    assert CostParts(0.0, 1.0).total == 1.0


@pytest.mark.parametrize("part", ["draft", "verify", "state", "queue"])
@pytest.mark.parametrize("cost", [-0.1, float("nan"), float("inf")])
def test_no_sum_hides_a_negative_part(part, cost):
    with pytest.raises(ValueError, match=f"`{part}` is {cost}"):
        CostParts(**{"draft": 1.0, "verify": 1.0, part: cost})


def test_time_per_token_is_a_ratio_of_means():
    """0x05C: 38 s for 6 tokens, though rounds take 27.5 / 3 s a token on average."""
    assert time_per_token([10.0, 14.0, 14.0], [1, 1, 4]) == pytest.approx(38 / 6)


def test_the_long_run_is_expectation_over_expectation():
    """0x05C: rounds as often as their law has them; each takes 2, and a half more for every accepted token."""
    law = prefix_law(survival(FRONT))
    tokens = [a + 1 for a, mass in enumerate(law) for _ in range(round(10000 * mass))]
    costs = [2 + 0.5 * (count - 1) for count in tokens]
    found = time_per_token(costs, tokens)
    # 3.2616 / 3.5232
    assert found == pytest.approx((2 + 0.5 * 2.5232) / 3.5232)
    # the mean of ratios counts short rounds too much
    ratios = [cost / count for cost, count in zip(costs, tokens, strict=True)]
    assert statistics.fmean(ratios) == pytest.approx(0.994235)
    assert found == pytest.approx(0.925749, abs=1e-6)


# --- speed-up


def test_speedup_weighs_progress_against_parts():
    """0x05C: drafting costs 0.4 of a plain step, the wider forward 0.1 more than one."""
    progress = progress_by_length(survival(FRONT))[-1]
    assert speedup(progress, CostParts(0.4, 1.1).total) == pytest.approx(3.5232 / 1.5)
    assert speedup(progress, 15.0, 10.0) == pytest.approx(3.5232 / 1.5)
    # at the same mean rate
    assert speedup(progress_by_length(survival(BACK))[-1], 1.5) == pytest.approx(2.0612 / 1.5)


def test_speedup_of_the_paper_by_hand():
    """0x05D: 1.875 tokens for 1.3 steps; 3.68928 for 1.25."""
    assert leviathan_speedup(0.5, 3, 0.1) == pytest.approx(1.875 / 1.3)
    assert leviathan_speedup(0.8, 5, 0.05) == pytest.approx(2.951424)


@given(st.floats(0, 0.99), st.integers(0, 12), st.floats(0, 1))
def test_speedup_of_the_paper(rate, length, ratio):
    """0x05D."""
    closed = (1 - rate ** (length + 1)) / ((1 - rate) * (1 + length * ratio))
    assert leviathan_speedup(rate, length, ratio) == pytest.approx(closed)


@pytest.mark.parametrize("rate", [1 - 1e-13, 1.0])
def test_the_limit_of_the_paper(rate):
    """0x05D: all accepted."""
    assert leviathan_speedup(rate, 4, 0.25) == pytest.approx(5 / 2)


# --- break-even


@pytest.mark.parametrize(
    ("length", "round_cost", "step_cost", "expected"),
    [
        # 1 + a = 1.62
        (1, 16.2, 10.0, 0.62),
        # 1 + a + a^2 = 1.75
        (2, 17.5, 10.0, 0.5),
        (1, 9.0, 10.0, 0.0),
        (3, 40.0, 10.0, 1.0),
        (3, 40.1, 10.0, None),
        (0, 10.0, 10.0, 0.0),
        (0, 10.1, 10.0, None),
    ],
)
def test_break_even_acceptance(length, round_cost, step_cost, expected):
    found = break_even_acceptance(length, round_cost, step_cost)
    assert found == (None if expected is None else pytest.approx(expected, abs=1e-9))


@given(st.floats(0, 0.999), st.integers(1, 10), st.floats(0.1, 10))
def test_at_break_even_drafting_brings_what_it_costs(rate, length, step):
    cost = step * uniform_progress(rate, length)
    assert break_even_acceptance(length, cost, step) == pytest.approx(rate, abs=1e-9)


# --- the best length


def test_best_length_is_inside_where_drafts_cost():
    """Long drafts of a good drafter stop paying, and no draft pays where the drafter costs too much."""
    costs = [1 + 0.2 * k for k in range(5)]
    assert best_length(progress_by_length(survival(FRONT)), costs) == 3
    assert best_length(progress_by_length(survival(BACK)), costs) == 2
    assert best_length(progress_by_length(survival([0.1] * 4)), costs) == 0
    assert best_length(progress_by_length(survival([1.0] * 4)), [1 + k for k in range(5)]) == 0


@pytest.mark.parametrize(("profile", "alone", "together"), [("falling", 5, 3), ("rising", 3, 1), ("dipping", 2, 2)])
def test_best_length_under_a_cost_model(profile, alone, together):
    """0x05F: inside where there is such an optimum, and another one where many rows wait for each other."""
    progress = progress_by_length(survival(PROFILES[profile]))
    for rows, expected in ((1, alone), (32, together)):
        costs = [model(length, rows).total for length in range(9)]
        assert best_length(progress, costs) == expected
        gains = [speedup(*each) for each in zip(progress, costs, strict=True)]
        assert max(gains) == gains[expected]


@given(st.lists(st.tuples(st.floats(1, 9), st.floats(0.1, 9)), min_size=1, max_size=9))
def test_no_length_is_better(rounds):
    progress, costs = zip(*rounds, strict=True)
    best = best_length(progress, costs)
    gains = [tokens / cost for tokens, cost in rounds]
    assert gains[best] == max(gains) and best == gains.index(max(gains))


# --- refusals


@pytest.mark.parametrize(
    ("progress", "costs", "why"),
    [
        ([1, 2], [1], "One cost for each"),
        ([], [], "One cost for each"),
        ([0, 1], [1, 2], "at least one token"),
        # accepted tokens alone
        ([1, 0.95], [1, 2], "0.95 leaves it out"),
        ([1, float("nan")], [1, 2], "at least one token"),
        ([1, 2], [1, 0], "costs something"),
        ([1, 2], [1, -1], "costs something"),
        ([1, 2], [float("nan"), 1], "costs something"),
    ],
)
def test_ledgers_that_make_no_sense(progress, costs, why):
    with pytest.raises(ValueError, match=why):
        best_length(progress, costs)


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (lambda: time_per_token([1.0], []), "got 1 and 0"),
        (lambda: time_per_token([], []), "got 0 and 0"),
        # nothing accepted, and the token after that forgotten
        (lambda: time_per_token([1.0, 1.0], [3, 0]), "0 leaves it out"),
        (lambda: time_per_token([1.0, -1.0], [3, 1]), "costs something, got -1.0"),
        (lambda: speedup(0.5, 1.0), "0.5 leaves it out"),
        (lambda: speedup(2.0, 0.0), "costs something"),
        (lambda: speedup(2.0, 1.0, -1.0), "costs something"),
        (lambda: leviathan_speedup(0.5, 2, -0.1), "`draft` is -0.2"),
        (lambda: leviathan_speedup(1.5, 2, 0.1), "between 0 and 1"),
        (lambda: break_even_acceptance(2, -1.0, 1.0), "costs something"),
        (lambda: break_even_acceptance(-1, 1.0, 1.0), "no -1 tokens"),
    ],
)
def test_costs_that_make_no_sense(refused, why):
    with pytest.raises(ValueError, match=why):
        refused()
