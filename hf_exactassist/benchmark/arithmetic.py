"""What drafting should cost and bring, from measured costs and acceptance. Plain numbers in, plain numbers out.

A round with `K` draft tokens costs `K` draft steps and one target forward over `K + 1` tokens, and publishes the
accepted drafts and one token more. Time per token is the mean cost of a round over the mean number of its tokens: a
ratio of means, never a mean of ratios.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..ledger import expected_progress


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


def survival(drafted: Sequence[int], accepted: Sequence[int]) -> list[float]:
    """How likely the draft is accepted up to and including each position.

    Args:
        drafted (`Sequence[int]`): how often each position was drafted.
        accepted (`Sequence[int]`): how often each was accepted.

    Returns:
        `list[float]`: one probability per drafted position, never rising.
    """
    chances: list[float] = []
    for tried, kept in zip(drafted, accepted, strict=True):
        if not tried:
            break
        # rounds at the end of a text are shorter, which can make a later position look better
        chances.append(min(kept / tried, chances[-1] if chances else 1.0))
    return chances


def acceptance_by_position(surviving: Sequence[float]) -> list[float]:
    """How likely each draft token is accepted once all before it are; ends where none ever were."""
    found, before = [], 1.0
    for chance in surviving:
        if not before:
            break
        found.append(chance / before)
        before = chance
    return found


def expected_tokens(surviving: Sequence[float]) -> float:
    """Mean tokens of a round that drafts as many as there are probabilities: 1 + their sum."""
    return 1.0 + sum(surviving)


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
        surviving (`Sequence[float]`): see [`survival`]; at least `length` long.
        length (`int`): tokens per draft.
        draft_step (`float`): seconds of one draft step.
        costs (`Mapping[int, float]`): seconds of target forwards by width; width 1 is a plain step.
    """
    return verify_seconds(costs, 1) * expected_tokens(surviving[:length]) / round_seconds(length, draft_step, costs)


def break_even_acceptance(length: int, round_cost: float, step_cost: float) -> float | None:
    """The acceptance at which drafting costs as much as it brings, if every draft token had the same.

    Args:
        length (`int`): tokens per draft.
        round_cost (`float`): seconds of a round.
        step_cost (`float`): seconds of a plain step.

    Returns:
        `float`, *optional*: between 0 and 1; `None` if a round is dearer than the most tokens it can publish.
    """
    wanted = round_cost / step_cost
    if wanted > length + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        enough = expected_progress([middle] * length)[-1] >= wanted
        low, high = (low, middle) if enough else (middle, high)
    return high


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
