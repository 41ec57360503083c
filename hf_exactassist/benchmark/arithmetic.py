"""What drafting should cost, from measured forwards. Plain numbers in, plain numbers out.

A round with `K` draft tokens costs `K` draft steps and one target forward over `K + 1` tokens. What it brings, and
what that makes of the cost, is in [`~hf_exactassist.ledger`].
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..ledger import progress_by_length, speedup


@dataclass(frozen=True)
class Quartiles:
    """Three numbers for a sample.

    Attributes:
        lower (`float`): a quarter lies below.
        median (`float`): half lies below.
        upper (`float`): three quarters lie below.
    """

    lower: float
    median: float
    upper: float


def quartiles(values: Sequence[float]) -> Quartiles:
    """Quartiles of at least one value, between neighbours where none is exactly there.

    Raises:
        ValueError: there is no value.
    """
    if not values:
        raise ValueError("no values")
    if len(values) == 1:
        return Quartiles(values[0], values[0], values[0])
    return Quartiles(*statistics.quantiles(values, n=4, method="inclusive"))


def verify_seconds(costs: Mapping[int, float], width: int) -> float:
    """What a target forward over `width` tokens costs, on a straight line through the nearest measured widths.

    Args:
        costs (`Mapping[int, float]`): seconds by width, at least one.
        width (`int`): tokens per row.

    Raises:
        ValueError: nothing is measured.
    """
    if not costs:
        raise ValueError("no width is measured")
    if width in costs or len(costs) == 1:
        return costs.get(width, next(iter(costs.values())))
    known = sorted(costs)
    below = [other for other in known if other < width][-2:]
    above = [other for other in known if other > width][:2]
    left, right = (below[-1], above[0]) if below and above else (below or above)
    return costs[left] + (costs[right] - costs[left]) * (width - left) / (right - left)


def round_seconds(length: int, draft_step: float, costs: Mapping[int, float]) -> float:
    """The forwards of one round with `length` draft tokens."""
    return length * draft_step + verify_seconds(costs, length + 1)


def expected_speedup(surviving: Sequence[float], length: int, draft_step: float, costs: Mapping[int, float]) -> float:
    """Speed-up of fixed drafts if nothing but forwards took time (Leviathan et al. 2023, with measured costs).

    Args:
        surviving (`Sequence[float]`): see [`~hf_exactassist.ledger.survival`]; at least `length` long.
        length (`int`): tokens per draft.
        draft_step (`float`): seconds of one draft step.
        costs (`Mapping[int, float]`): seconds of target forwards by width; width 1 is a plain step.
    """
    progress = progress_by_length(surviving[:length])[-1]
    return speedup(progress, round_seconds(length, draft_step, costs), verify_seconds(costs, 1))


def draft_lengths(rounds: int, drafted: Sequence[int]) -> dict[int, int]:
    """How many drafts had which length.

    Args:
        rounds (`int`): rounds of the call; what they exceed the drafts by is counted as drafts of length 0.
        drafted (`Sequence[int]`): how often each position was drafted, all rows.

    Returns:
        `dict[int, int]`: drafts by length, rows apart.
    """
    lengths = {0: max(0, rounds - (drafted[0] if drafted else 0))}
    for length, (reached, further) in enumerate(zip(drafted, [*drafted, 0][1:], strict=True), start=1):
        lengths[length] = reached - further
    return {length: count for length, count in lengths.items() if count}


def mean_round_seconds(lengths: Mapping[int, int], draft_step: float, costs: Mapping[int, float]) -> float:
    """The forwards of a round, on average over drafts of these lengths.

    Raises:
        ValueError: there is no draft.
    """
    drafts = sum(lengths.values())
    if not drafts:
        raise ValueError("no drafts")
    return sum(count * round_seconds(length, draft_step, costs) for length, count in lengths.items()) / drafts
