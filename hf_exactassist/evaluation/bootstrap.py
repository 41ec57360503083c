"""How surely a mean over prompts or a speed differs: a paired bootstrap, for likelihoods, a task's metric and time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike


# numbers drawn at a time: 32 MiB
_CHUNK = 2**22
# with fewer pairs than that, no interval holds what it promises
FEWEST = 5


@dataclass(frozen=True)
class MeanDifference:
    """The mean of paired differences.

    Attributes:
        mean (`float`): assisted less plain, on average over prompts.
        low (`float`): lower end of the interval.
        high (`float`): upper end of the interval.
        level (`float`): how often such intervals hold the true difference.
        prompts (`int`): pairs.
        equal (`int`): pairs without a difference.
    """

    mean: float
    low: float
    high: float
    level: float
    prompts: int
    equal: int


def mean_difference(
    assisted: ArrayLike, plain: ArrayLike, level: float = 0.95, resamples: int = 5000, seed: int = 0
) -> MeanDifference:
    """Mean difference over prompts with a bootstrap interval (Efron 1979), prompts drawn anew with their pairs.

    Percentiles are taken farther out the fewer prompts there are, as far as Student's t law asks (Hesterberg 2015).
    With fewer than five pairs that is not enough, and where nearly all pairs are equal an interval says little.

    Args:
        assisted (`ArrayLike` of shape `(P,)`): a number for each prompt.
        plain (`ArrayLike` of shape `(P,)`): the same number for plain `generate`, prompts in the same order.
        level (`float`): between 0 and 1.
        resamples (`int`): how often prompts are drawn anew.
        seed (`int`): of these draws.

    Raises:
        ValueError: there are fewer than two pairs, they do not match, or a number is not finite.
    """
    gaps = paired_gaps(assisted, plain)
    count = len(gaps)
    means = np.concatenate([gaps[drawn].mean(axis=1) for drawn in _drawn_anew(count, resamples, seed)])
    low, high = _interval(means, level, count)
    equal = count - int(np.count_nonzero(gaps))
    return MeanDifference(float(gaps.mean()), low, high, level, count, equal)


@dataclass(frozen=True)
class SpeedRatio:
    """How many times as fast one way is as another.

    Attributes:
        ratio (`float`): time per token of plain decoding over that of the other way, each all time over all tokens.
        low (`float`): lower end of the interval.
        high (`float`): upper end of the interval.
        level (`float`): how often such intervals hold the true ratio.
        units (`int`): pairs.
    """

    ratio: float
    low: float
    high: float
    level: float
    units: int


def speed_ratio(
    assisted: ArrayLike, plain: ArrayLike, level: float = 0.95, resamples: int = 5000, seed: int = 0
) -> SpeedRatio:
    """Speed-up with a bootstrap interval (Efron 1979), units drawn anew with all their times and tokens.

    A ratio of sums, as in the long run (contract 0x05C), and no mean of ratios. The interval is made as that of
    [`mean_difference`].

    Args:
        assisted (`ArrayLike` of shape `(U, 2)`): of each unit, seconds and tokens.
        plain (`ArrayLike` of shape `(U, 2)`): the same for plain `generate`, units in the same order.
        level (`float`): between 0 and 1.
        resamples (`int`): how often units are drawn anew.
        seed (`int`): of these draws.

    Raises:
        ValueError: there are fewer than two units, they do not match, or a number is not finite and above 0.
    """
    first, second = np.asarray(plain, dtype=np.float64), np.asarray(assisted, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 2 or first.shape[1] != 2 or len(first) < 2:
        raise ValueError(f"Seconds and tokens of two units or more: got {second.shape} and {first.shape}.")
    both = np.stack([first, second], axis=1)
    if not (np.isfinite(both) & (both > 0)).all():
        raise ValueError("Every unit takes some time and has some tokens.")

    def ratio(sums: np.ndarray) -> np.ndarray:
        seconds, tokens = sums[..., 0], sums[..., 1]
        found: np.ndarray = (seconds[..., 0] / tokens[..., 0]) / (seconds[..., 1] / tokens[..., 1])
        return found

    ratios = np.concatenate([ratio(both[drawn].sum(axis=1)) for drawn in _drawn_anew(len(both), resamples, seed)])
    low, high = _interval(ratios, level, len(both))
    return SpeedRatio(float(ratio(both.sum(axis=0))), low, high, level, len(both))


def _drawn_anew(count: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Indices of shape `(R, count)`, so many at a time as memory has room for, `resamples` in all."""
    rng = np.random.default_rng(seed)
    most = max(1, _CHUNK // count)
    for start in range(0, resamples, most):
        yield rng.integers(count, size=(min(most, resamples - start), count))


def _interval(values: np.ndarray, level: float, count: int) -> tuple[float, float]:
    """Percentiles of what resamples of so many units gave."""
    if not 0 < level < 1:
        raise ValueError(f"A level lies between 0 and 1, got {level}.")
    # resamples scatter too little, as does the normal law for few units (expanded percentiles of Hesterberg 2015)
    spread = _student(NormalDist().inv_cdf((1 + level) / 2), count - 1) * math.sqrt(count / (count - 1))
    tail = NormalDist().cdf(-spread)
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def _student(z: float, freedom: int) -> float:
    """The quantile of Student's t law where the normal law has `z` (Abramowitz and Stegun 26.7.5)."""
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


def paired_gaps(assisted: ArrayLike, plain: ArrayLike) -> np.ndarray:
    """Assisted less plain, checked: float64 of shape `(P,)`.

    Raises:
        ValueError: there are fewer than two pairs, they do not match, or a number is not finite.
    """
    first, second = np.asarray(assisted, dtype=np.float64), np.asarray(plain, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1 or len(first) < 2:
        raise ValueError(f"Two numbers for each of two prompts or more: got {first.shape} and {second.shape}.")
    gaps: np.ndarray = first - second
    if not np.isfinite(gaps).all():
        raise ValueError(f"Prompt {int(np.argmin(np.isfinite(gaps)))} has a number that is not finite.")
    return gaps
