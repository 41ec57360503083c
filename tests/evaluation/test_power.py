"""Alternatives, and the smallest one that is found."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hf_exactassist.evaluation.power import smallest_found, tempered, threshold, unseen_share


LAWS = st.lists(st.integers(0, 9), min_size=2, max_size=6).filter(sum)
TEMPERATURES = st.floats(0.25, 4)


def test_tempered_by_hand():
    laws = np.array([[0.8, 0.2, 0.0], [0.5, 0.25, 0.25]])
    assert tempered(laws, 2.0)[0] == pytest.approx([2 / 3, 1 / 3, 0.0])
    assert tempered(laws, 0.5)[1] == pytest.approx([2 / 3, 1 / 6, 1 / 6])
    with pytest.raises(ValueError, match="above 0"):
        tempered(laws, 0.0)


@given(LAWS, TEMPERATURES, TEMPERATURES)
def test_temperatures_multiply(weights, one, other):
    law = np.array(weights) / sum(weights)
    assert tempered(law, 1.0) == pytest.approx(law)
    assert tempered(tempered(law, one), other) == pytest.approx(tempered(law, one * other))


def test_smallest_found():
    found = smallest_found(lambda size: float(size > 1.3), most=4.0, power=0.9)
    assert 1.3 < found <= 1.3 + 4.0 / 500
    assert smallest_found(lambda size: 0.5, most=4.0, power=0.9) == math.inf
    assert smallest_found(lambda size: 1.0, most=0.0, power=0.9) == math.inf


@given(st.lists(st.integers(0, 9), min_size=4, max_size=40), st.integers(0, 9), st.floats(0.05, 0.9))
def test_what_exceeds_the_threshold_has_a_small_p_value(null, statistic, alpha):
    assume(alpha * (len(null) + 1) >= 1)
    p_value = (1 + sum(value >= statistic for value in null)) / (len(null) + 1)
    assert (statistic > threshold(np.array(null, float), alpha)) == (p_value <= alpha)


def test_too_few_simulations():
    assert threshold(np.arange(19.0), 0.05) == 18.0
    with pytest.raises(ValueError, match="20 simulations or more, got 18"):
        threshold(np.arange(18.0), 0.05)


def test_unseen_share():
    assert unseen_share(1, 0.95) == pytest.approx(0.95)
    # the rule of three
    assert unseen_share(300, 0.95) == pytest.approx(3 / 300, rel=0.01)
    assert (1 - unseen_share(24, 0.9)) ** 24 == pytest.approx(0.1)
