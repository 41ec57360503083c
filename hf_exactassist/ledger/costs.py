"""What a round costs against what it brings: speed-up, break-even, the best length (contract 0x05C to 0x05E)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from .progress import uniform_progress


@dataclass(frozen=True)
class CostParts:
    """What a round takes, part by part, in any unit; a sum could hide a negative part.

    Attributes:
        draft (`float`): all draft steps.
        verify (`float`): the target's forward.
        state (`float`): packing, judging, rolling back; on average over how many tokens are accepted.
        queue (`float`): waiting, and what the round makes others wait.

    Raises:
        ValueError: a part is negative or no finite number.
    """

    draft: float
    verify: float
    state: float = 0.0
    queue: float = 0.0

    def __post_init__(self) -> None:
        for part in fields(self):
            cost = getattr(self, part.name)
            if not 0 <= cost < math.inf:
                raise ValueError(f"No part of a round costs less than nothing: `{part.name}` is {cost}.")

    @property
    def total(self) -> float:
        """The cost of the round."""
        return math.fsum(astuple(self))


def time_per_token(costs: Sequence[float], tokens: Sequence[int]) -> float:
    """Cost per published token in the long run: all costs over all tokens, not the mean of each round's own ratio.

    Args:
        costs (`Sequence[float]`): of each round, what it took.
        tokens (`Sequence[int]`): of each round, the tokens it published, the one after the accepted ones included.

    Raises:
        ValueError: lengths differ, there is no round, or one makes no progress or costs nothing.
    """
    if len(costs) != len(tokens) or not costs:
        raise ValueError(f"One cost and one number of tokens for each round: got {len(costs)} and {len(tokens)}.")
    for cost, count in zip(costs, tokens, strict=True):
        _check_round(count, cost)
    return math.fsum(costs) / sum(tokens)


def speedup(progress: float, round_cost: float, step_cost: float = 1.0) -> float:
    """How many times as fast as plain decoding rounds are: a ratio of expectations.

    Args:
        progress (`float`): expected tokens of a round.
        round_cost (`float`): expected cost of a round.
        step_cost (`float`): cost of a plain step.

    Raises:
        ValueError: a round makes no progress, or something costs nothing.
    """
    _check_round(progress, round_cost)
    _check_round(1, step_cost)
    return progress * step_cost / round_cost


def leviathan_speedup(rate: float, length: int, cost_ratio: float) -> float:
    """Speed-up if every draft token had the same rate and a verifying forward cost a plain step (0x05D).

    The closed form of Leviathan et al. 2023. Wide forwards, state and waiting cost something too: [`speedup`] takes
    what they do.

    Args:
        rate (`float`): acceptance of every draft token.
        length (`int`): tokens per draft.
        cost_ratio (`float`): what a draft step costs, in plain steps.

    Raises:
        ValueError: the rate is no probability, the length or the cost negative.
    """
    return speedup(uniform_progress(rate, length), CostParts(draft=length * cost_ratio, verify=1.0).total)


def break_even_acceptance(length: int, round_cost: float, step_cost: float) -> float | None:
    """The acceptance at which drafting costs as much as it brings, if every draft token had the same.

    Args:
        length (`int`): tokens per draft.
        round_cost (`float`): cost of a round.
        step_cost (`float`): cost of a plain step.

    Returns:
        `float`, *optional*: between 0 and 1; `None` if a round is dearer than the most tokens it can publish.

    Raises:
        ValueError: the length is negative, or something costs nothing.
    """
    if speedup(uniform_progress(1.0, length), round_cost, step_cost) < 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        enough = speedup(uniform_progress(middle, length), round_cost, step_cost) >= 1
        low, high = (low, middle) if enough else (middle, high)
    return high


def best_length(progress: Sequence[float], costs: Sequence[float]) -> int:
    """The draft length with the most progress per cost: a ratio of expectations, as in the long run.

    Args:
        progress (`Sequence[float]` of length `K + 1`): expected tokens of a round by draft length.
        costs (`Sequence[float]` of length `K + 1`): expected cost of a round by draft length, in any unit.

    Returns:
        `int`: the shortest of the best.

    Raises:
        ValueError: lengths differ, a round makes no progress, or one costs nothing.
    """
    if len(progress) != len(costs) or not progress:
        raise ValueError(f"One cost for each draft length: got {len(progress)} and {len(costs)}.")
    for tokens, cost in zip(progress, costs, strict=True):
        _check_round(tokens, cost)
    return max(range(len(costs)), key=lambda length: (progress[length] / costs[length], -length))


def _check_round(tokens: float, cost: float) -> None:
    if not 1 <= tokens < math.inf:
        raise ValueError(
            f"Every round publishes at least one token, the one after the accepted ones; {tokens} leaves it out."
        )
    if not 0 < cost < math.inf:
        raise ValueError(f"Every round costs something, got {cost}.")
