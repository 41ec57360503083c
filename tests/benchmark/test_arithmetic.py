"""Costs of forwards, by hand."""

import pytest

from hf_exactassist.benchmark import arithmetic


def test_quartiles_lie_between_neighbours():
    assert arithmetic.quartiles([3.0]) == arithmetic.Quartiles(3.0, 3.0, 3.0)
    assert arithmetic.quartiles([5.0, 1.0, 2.0, 4.0, 3.0]) == arithmetic.Quartiles(2.0, 3.0, 4.0)
    assert arithmetic.quartiles([1.0, 2.0]) == arithmetic.Quartiles(1.25, 1.5, 1.75)
    with pytest.raises(ValueError):
        arithmetic.quartiles([])


def test_verify_seconds_are_on_a_line_through_the_nearest_widths():
    costs = {1: 10.0, 2: 11.0, 4: 15.0, 9: 20.0}
    assert arithmetic.verify_seconds(costs, 4) == 15.0
    assert arithmetic.verify_seconds(costs, 3) == 13.0
    assert arithmetic.verify_seconds(costs, 11) == 22.0
    assert arithmetic.verify_seconds({2: 5.0, 4: 9.0}, 1) == 3.0
    assert arithmetic.verify_seconds({2: 5.0}, 7) == 5.0
    with pytest.raises(ValueError):
        arithmetic.verify_seconds({}, 1)


def test_expected_speedup_is_a_ratio_of_means():
    costs = {1: 10.0, 3: 12.0}
    assert arithmetic.round_seconds(2, 1.5, costs) == 15.0
    # (1 + 0.8 + 0.4) tokens for 15, against 10 each
    assert arithmetic.expected_speedup([0.8, 0.4], 2, 1.5, costs) == pytest.approx(22 / 15)
    # position 2 is not drafted
    assert arithmetic.expected_speedup([0.8, 0.4], 1, 1.5, {1: 10.0, 2: 12.0}) == pytest.approx(18 / 13.5)


def test_draft_lengths():
    # 7 rounds: 1 without a draft, 2 of one token, 4 of three
    assert arithmetic.draft_lengths(7, [6, 4, 4]) == {0: 1, 1: 2, 3: 4}
    assert arithmetic.draft_lengths(3, []) == {0: 3}
    # two rows draft in each of 3 rounds
    assert arithmetic.draft_lengths(3, [6, 6]) == {2: 6}


def test_mean_round_seconds():
    # (10 + 2 * (1 + 11)) / 3
    assert arithmetic.mean_round_seconds({0: 1, 1: 2}, 1.0, {1: 10.0, 2: 11.0}) == pytest.approx(34 / 3)
    with pytest.raises(ValueError):
        arithmetic.mean_round_seconds({}, 1.0, {1: 10.0})
