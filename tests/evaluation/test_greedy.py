"""Where greedy texts part, and what rounding explains."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_exactassist.evaluation import Divergence, compare_texts, first_difference, summarise
from hf_exactassist.evaluation.greedy import _WIDE_UNITS


TEXTS = st.lists(st.integers(0, 2), max_size=6)


def parted(best, other, dtype, third=-5.0):
    """Plain text takes token 0, assisted text token 1."""
    return compare_texts(
        [7, 0], [7, 1], lambda position: torch.tensor([best, other, third], dtype=torch.float64), dtype
    )


def test_first_difference():
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 4, 3]) == 1
    assert first_difference([1, 2, 3], [1, 2]) == first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference([], []) is None
    assert first_difference([], [1]) == 0


@given(TEXTS, TEXTS)
def test_texts_are_equal_up_to_the_first_difference(one, other):
    position = first_difference(one, other)
    assert position == first_difference(other, one)
    if position is None:
        assert one == other
    else:
        assert one[:position] == other[:position] and one[position : position + 1] != other[position : position + 1]


def test_scores_are_asked_for_once_and_where_it_matters():
    asked = []

    def scores_at(position):
        asked.append(position)
        return torch.tensor([3.0, 2.5, 9.0, 0.0])

    assert compare_texts([2, 2, 1, 0], [2, 2, 0, 1], scores_at, torch.float32) == Divergence(2, 1, 0, 6.5, False)
    assert asked == [2]
    assert compare_texts([2, 1], [2, 1], scores_at, torch.float32) is None
    assert compare_texts([2, 1], [2], scores_at, torch.float32) == Divergence(1, 1, None, None, False)
    assert compare_texts([2], [2, 1], scores_at, torch.float32) == Divergence(1, None, 1, None, False)
    assert asked == [2]


@pytest.mark.parametrize(
    ("dtype", "tie", "fault"),
    [
        # two units in the last place of 16 to 32: 2 * 16 / 2**7, and three binary digits more
        (torch.bfloat16, 0.25, 0.2501),
        (torch.float16, 2**-5, 2**-5 + 1e-4),
        # 128 * 20 / 2**23, as exactly for float64
        (torch.float32, 3.05e-4, 3.06e-4),
        (torch.float64, 5.68e-13, 5.72e-13),
    ],
)
def test_ties_and_faults_by_dtype(dtype, tie, fault):
    for margin, kind in ((0.0, "numerical tie"), (tie, "numerical tie"), (fault, "fault")):
        found = parted(20.0, 20.0 - margin, dtype)
        assert found.kind == kind and found.tie == (kind == "numerical tie")
        assert found.margin == pytest.approx(margin, rel=0.01)
        # whichever of the two the assisted text has
        assert parted(20.0 - margin, 20.0, dtype).kind == kind


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_no_tie_explains(dtype):
    # the two best are tied, but the assisted text has the third
    assert parted(20.0, 19.0, dtype, third=20.0).kind == "fault"
    # a token that is excluded, and scores that are none
    assert parted(20.0, -math.inf, dtype).kind == "fault"
    assert parted(math.nan, 20.0, dtype).kind == "fault"
    # three tied ones explain any two of them
    assert parted(20.0, 20.0, dtype, third=20.0).kind == "numerical tie"
    # small scores are differences of larger numbers
    assert parted(0.0, -1e-6, dtype).kind == "numerical tie"


def test_tolerance_of_wide_dtypes_is_what_long_sums_err_by():
    """Dot products of 16384 terms, added in float32 one after the other, as large as their own scatter."""
    rng = np.random.default_rng(0)
    terms = (rng.normal(size=(200, 16384)) * rng.normal(size=(200, 16384))).astype(np.float32)
    errors = np.abs(terms.cumsum(axis=1, dtype=np.float32)[:, -1] - terms.sum(axis=1, dtype=np.float64))
    units = errors / np.finfo(np.float32).eps / math.sqrt(16384)
    assert _WIDE_UNITS / 20 < units.max() < _WIDE_UNITS


def test_scores_must_hold_the_tokens():
    for scores in (torch.zeros(1), torch.zeros(1, 3)):
        with pytest.raises(ValueError, match="must hold tokens"):
            compare_texts([0], [1], lambda position, scores=scores: scores, torch.float32)


def test_summary():
    tie, fault = Divergence(3, 1, 2, 0.0, True), Divergence(5, 1, None, None, False)
    found = summarise([None, tie, None, fault])
    assert (found.texts, found.identical, found.identity_rate) == (4, 2, 0.5)
    assert found.divergences == (tie, fault) and found.faults == (fault,)
    with pytest.raises(ValueError, match="No texts"):
        summarise([])
