"""Intervals of paired means, by hand and by how often they hold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_exactassist.evaluation import bootstrap, mean_difference


NUMBERS = st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=2, max_size=8)


def test_by_hand():
    """Means of three draws from 0, 0, 3 are 0, 1, 2, 3 with 8, 12, 6, 1 chances of 27.

    Student's law with two degrees of freedom puts 0.8 within 1.886; times the root of 3 / 2, beyond which the normal
    law has 0.0105 on either side. Within 0.289 it puts 0.2, which makes it 0.362.
    """
    found = mean_difference([1.0, 2.0, 5.0], [1.0, 2.0, 2.0], level=0.8)
    assert (found.mean, found.low, found.high) == (1.0, 0.0, 3.0)
    assert (found.prompts, found.equal, found.level) == (3, 2, 0.8)
    narrow = mean_difference([1.0, 2.0, 5.0], [1.0, 2.0, 2.0], level=0.2)
    assert (narrow.low, narrow.high) == (1.0, 1.0)


@pytest.mark.parametrize(("freedom", "quantile"), [(4, 2.776), (9, 2.262), (29, 2.045)])
def test_students_law(freedom, quantile):
    assert bootstrap._student(1.959964, freedom) == pytest.approx(quantile, abs=1e-2)


@given(NUMBERS)
@settings(max_examples=25, deadline=None)
def test_arms_exchanged_and_shifted(pairs):
    assisted, plain = np.array(pairs).T
    one = mean_difference(assisted, plain, resamples=200)
    other = mean_difference(plain, assisted, resamples=200)
    shifted = mean_difference(assisted + 1, plain, resamples=200)
    assert (other.mean, other.low, other.high) == pytest.approx((-one.mean, -one.high, -one.low))
    assert (shifted.mean, shifted.low, shifted.high) == pytest.approx((one.mean + 1, one.low + 1, one.high + 1))
    gaps = assisted - plain
    assert gaps.min() - 1e-9 <= one.low <= one.high <= gaps.max() + 1e-9


def test_seeds(monkeypatch):
    arms = np.random.default_rng(0).normal(size=(2, 20))
    assert mean_difference(*arms, seed=1) == mean_difference(*arms, seed=1) != mean_difference(*arms, seed=2)
    whole = mean_difference(*arms)
    # in pieces, as for very many prompts
    monkeypatch.setattr(bootstrap, "_CHUNK", 20 * 7)
    pieces = mean_difference(*arms)
    assert (pieces.low, pieces.high) == pytest.approx((whole.low, whole.high), abs=0.03)


@pytest.mark.parametrize("prompts", [5, 10, 40])
def test_intervals_hold_the_truth_as_often_as_they_say(prompts):
    """Of 300 intervals of level 0.9 some 270. Plain percentiles of five prompts hold about 235."""
    rng, held = np.random.default_rng(0), 0
    for seed in range(300):
        # a difficulty that both arms share must not widen the interval
        shared = rng.normal(scale=100, size=prompts)
        assisted, plain = shared + rng.normal(size=prompts) + 0.5, shared + rng.normal(size=prompts)
        found = mean_difference(assisted, plain, level=0.9, resamples=400, seed=seed)
        held += found.low <= 0.5 <= found.high
        assert found.high - found.low < 20 / prompts**0.5
    assert 255 <= held <= 288


@pytest.mark.parametrize(
    ("assisted", "plain", "why"),
    [
        ([1.0], [1.0], "two prompts or more"),
        ([1.0, 2.0], [1.0], r"got \(2,\) and \(1,\)"),
        ([[1.0, 2.0]], [[1.0, 2.0]], "two prompts or more"),
        ([1.0, float("-inf")], [1.0, 2.0], "Prompt 1"),
        ([1.0, float("nan")], [1.0, 2.0], "Prompt 1"),
    ],
)
def test_what_cannot_be_compared(assisted, plain, why):
    with pytest.raises(ValueError, match=why):
        mean_difference(assisted, plain)


@pytest.mark.parametrize("level", [0.0, 1.0, float("nan")])
def test_what_is_no_level(level):
    with pytest.raises(ValueError, match="level"):
        mean_difference([1.0, 2.0], [1.0, 2.0], level=level)
