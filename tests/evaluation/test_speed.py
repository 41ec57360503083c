"""Seconds per token and speed-ups, by hand (contract 0x05C)."""

import pytest

from hf_exactassist.evaluation import speed_ratio
from hf_exactassist.evaluation.speed import SEVERAL, seconds_per_token, speed
from tests.evaluation.made import call, plain


KINDS = ["prose", "code"]


def test_all_time_by_all_tokens():
    """Plain: 10 s for 4 + 1 tokens. Assisted: 3 s for the same. The mean of ratios would be (2 + 8) / 2."""
    before = [plain(batch=0, texts=[range(4)], seconds=2.0), plain(batch=1, texts=[[1]], seconds=8.0)]
    after = [call(batch=0, texts=[range(4)], seconds=1.0), call(batch=1, texts=[[1]], seconds=2.0)]
    found = speed(after, before, KINDS, "cpu")
    assert found["speedup"] == pytest.approx(10 / 3)
    assert found["by_kind"] == {"prose": 2.0, "code": 4.0}
    assert found["seconds_per_token"] == {"mean": 0.6, "lower": 0.6875, "median": 1.125, "upper": 1.5625}
    # two batches are too few to tell how others would do
    assert found["interval"] is None


def test_texts_of_other_lengths_count_by_token():
    """8 tokens in 4 s against 2 in 2 s."""
    found = speed([call(texts=[range(8)], seconds=4.0)], [plain(texts=[range(2)], seconds=2.0)], KINDS, "wall")
    assert found["speedup"] == 2.0 and found["interval"] is None


def test_the_clock_is_the_one_asked_for():
    pair = [call(seconds={"cpu": 1.0, "wall": 4.0})], [plain(seconds={"cpu": 3.0, "wall": 2.0})]
    assert speed(*pair, KINDS, "cpu")["speedup"] == 3.0 and speed(*pair, KINDS, "wall")["speedup"] == 0.5


def test_units_of_one_side_are_left_out():
    before = [plain(batch=1, seconds=3.0), plain(batch=2, seconds=50.0)]
    found = speed([call(seconds=70.0), call(batch=1)], before, [*KINDS, "lists"], "cpu")
    assert found["speedup"] == 3.0 and found["by_kind"] == {"code": 3.0}
    nothing = speed([call()], [], KINDS, "cpu")
    assert nothing["speedup"] is nothing["interval"] is None and nothing["by_kind"] == {}
    assert speed([], before, KINDS, "cpu")["seconds_per_token"] is seconds_per_token([], "cpu") is None


def test_batches_of_several_kinds():
    pair = [call(texts=[[1], [2]], prompts=[0, 1])], [plain(texts=[[1], [2]], prompts=[0, 1], seconds=2.0)]
    assert speed(*pair, KINDS, "cpu")["by_kind"] == {SEVERAL: 2.0}


def test_repeats_are_no_further_prompts():
    """Batches differ and repeats do not: the interval must not narrow with repeats."""

    def units(make, *seconds, repeats):
        return [
            make(batch=batch, repeat=repeat, seconds=taken)
            for repeat in range(repeats)
            for batch, taken in enumerate(seconds)
        ]

    once, often = (
        speed(
            units(call, *[1.0] * 5, repeats=n), units(plain, 2.0, 6.0, 2.0, 6.0, 2.0, repeats=n), ["prose"] * 5, "cpu"
        )["interval"]
        for n in (1, 20)
    )
    assert once == often and 2.0 <= once[0] < 3.6 < once[1] <= 6.0


def test_ratio_of_sums():
    """Units drawn anew from (1 s, 1 s) and (1 s, 3 s) for one token each: 1, 2 or 3, with chances 1, 2, 1 of 4."""
    found = speed_ratio([[1, 1], [1, 1]], [[1, 1], [3, 1]], level=0.1)
    assert (found.ratio, found.low, found.high, found.units) == (2.0, 2.0, 2.0, 2)
    wide = speed_ratio([[1, 1], [1, 1]], [[1, 1], [3, 1]], level=0.8)
    assert (wide.low, wide.high) == (1.0, 3.0)


@pytest.mark.parametrize(
    ("assisted", "before", "why"),
    [
        ([[1, 1]], [[1, 1]], "two units or more"),
        ([[1, 1], [1, 0]], [[1, 1], [1, 1]], "takes some time and has some tokens"),
        ([[1, 1], [float("nan"), 1]], [[1, 1], [1, 1]], "takes some time"),
        ([[1, 1, 1], [1, 1, 1]], [[1, 1, 1], [1, 1, 1]], "Seconds and tokens"),
        ([[1, 1], [1, 1]], [[1, 1]], "Seconds and tokens"),
    ],
)
def test_what_has_no_ratio(assisted, before, why):
    with pytest.raises(ValueError, match=why):
        speed_ratio(assisted, before)
