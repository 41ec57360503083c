"""Ratios of time per token, their interval and the cost model, computed by hand."""

import numpy as np
import pytest


CALLS = {
    "plain_seconds": [1.0, 2.0, 6.0],
    "plain_tokens": [10, 20, 30],
    "assisted_seconds": [0.5, 1.5, 1.0],
    "assisted_tokens": [10, 20, 20],
}


def test_all_times_over_all_tokens(load):
    results = load("assisted_speedup").compute(**CALLS)
    assert results["plain_seconds_per_token"] == 9 / 60
    assert results["assisted_seconds_per_token"] == 3 / 50
    # the mean of ratios 2, 1.33 and 4 is 2.44
    assert results["speedup"] == pytest.approx(2.5)
    assert results["pairs"] == 3 and results["level"] == 0.95


def test_batches_are_one_sample(load):
    module = load("assisted_speedup")
    for start in range(3):
        module.add_batch(**{name: column[start : start + 1] for name, column in CALLS.items()})
    assert module.compute() == load("assisted_speedup").compute(**CALLS)


def test_single_pairs(load):
    module = load("assisted_speedup")
    for values in zip(*CALLS.values(), strict=True):
        module.add(**dict(zip(CALLS, values, strict=True)))
    assert module.compute() == load("assisted_speedup").compute(**CALLS)


def test_pairs_stay_together(load):
    # every prompt takes another time, and each is twice as fast
    times = np.linspace(1, 50, 20)
    results = load("assisted_speedup").compute(
        plain_seconds=times, plain_tokens=[10] * 20, assisted_seconds=times / 2, assisted_tokens=[10] * 20
    )
    assert results["low"] == pytest.approx(2) and results["high"] == pytest.approx(2)


def test_the_interval_holds_the_truth_as_often_as_it_says(load):
    rng, inside = np.random.default_rng(0), 0
    module = load("assisted_speedup")
    for trial in range(60):
        plain, assisted = rng.gamma(20, 1 / 20, 40), rng.gamma(20, 1 / 40, 40)
        tokens = [30] * 40
        results = module.compute(
            plain_seconds=plain,
            plain_tokens=tokens,
            assisted_seconds=assisted,
            assisted_tokens=tokens,
            level=0.8,
            resamples=200,
            seed=trial,
        )
        inside += results["low"] <= 2 <= results["high"]
    # 48 expected; five deviations on either side
    assert 33 <= inside <= 60
    assert results["level"] == 0.8


MANY = {name: column * 3 for name, column in CALLS.items()}


def test_the_seed_fixes_the_interval(load):
    first, second = (load("assisted_speedup").compute(**MANY, seed=5) for _ in range(2))
    assert first == second
    assert 1.3 < first["low"] < first["speedup"] < first["high"] <= 4


def test_few_pairs_have_no_interval(load):
    results = load("assisted_speedup").compute(**{name: column[:1] * 4 for name, column in CALLS.items()})
    assert results["speedup"] == 2 and results["low"] is None and results["high"] is None


def test_cost_model_by_hand(load):
    results = load("assisted_speedup").compute(
        **CALLS, draft_cost=0.5, verify_costs=[2.0, 2.0, 2.5, 9.0], survival=[0.5, 0.25, 0.25]
    )
    # a round of one draft token costs 2.5 against 2: it pays from 1 + r = 1.25 on
    # of two: 3.5, and 1 + r + r^2 = 1.75; of three: 10.5 is more than four steps
    assert results["break_even_acceptance"][0] == pytest.approx(0.25)
    assert results["break_even_acceptance"][1] == pytest.approx(0.5)
    assert results["break_even_acceptance"][2] is None
    assert results["predicted_speedup"] == pytest.approx([1, 1.5 * 2 / 2.5, 1.75 * 2 / 3.5, 2 * 2 / 10.5])
    assert results["best_length"] == 1


def test_costs_without_survival(load):
    results = load("assisted_speedup").compute(**CALLS, draft_cost=0.5, verify_costs=[1.0, 1.0])
    assert results["break_even_acceptance"] == [pytest.approx(0.5)]
    assert "best_length" not in results


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"plain_tokens": None}, "also needs plain_tokens"),
        ({"plain_tokens": [10, 20]}, "Mismatch in the number"),
        ({"plain_tokens": [10, 20, 2.5]}, "`plain_tokens` must hold whole numbers"),
        ({"plain_tokens": [10, 20, None]}, "`plain_tokens` must hold whole numbers"),
        ({"assisted_tokens": [10, 20, 0]}, "at least one token"),
        ({"assisted_seconds": [1.0, 1.0, 0.0]}, "costs something"),
        ({"assisted_seconds": [1.0, 1.0, float("nan")]}, "costs something|lacks a time"),
        ({"assisted_seconds": [1.0, 1.0, None]}, "`assisted_seconds` lacks a time"),
        ({"level": 1.0}, "level lies between"),
        ({"draft_cost": 0.1}, "A cost model has"),
        ({"survival": [0.5]}, "A cost model has"),
        ({"draft_cost": 0.1, "verify_costs": [1.0]}, "A cost model has"),
        ({"draft_cost": -0.1, "verify_costs": [1.0, 1.0]}, "`draft` is -0.1"),
        ({"draft_cost": 0.1, "verify_costs": [1.0, 1.0], "survival": [0.5, 0.4]}, "has 2 lengths"),
        ({"draft_cost": 0.1, "verify_costs": [1.0, 1.0, 1.0], "survival": [0.5, 0.6]}, "Survival rises"),
    ],
)
def test_impossible_input_is_refused(load, change, message):
    with pytest.raises(ValueError, match=message):
        load("assisted_speedup").compute(**{**CALLS, **change})


def test_no_pairs_are_refused(load):
    with pytest.raises(ValueError, match="no pairs"):
        load("assisted_speedup").compute(**{name: [] for name in CALLS})
