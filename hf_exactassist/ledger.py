"""What drafting brings: accepted prefixes, progress of a round, and the draft length that pays best (0x05)."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence


def survival(reach: Sequence[float]) -> list[float]:
    """Probability that the first `j` draft tokens are accepted (0x05A).

    Args:
        reach (`Sequence[float]` of length `K`): of each position, how often it is accepted where it is reached. Rates
            over all drafted tokens, reached or not, are other numbers.

    Returns:
        `list[float]` of length `K`: for `j = 1 ... K`.

    Raises:
        ValueError: a rate is no probability.
    """
    for rate in reach:
        if not 0 <= rate <= 1:
            raise ValueError(f"Acceptance rates lie between 0 and 1, got {rate}.")
    return list(itertools.accumulate(reach, operator.mul))


def expected_progress(reach: Sequence[float]) -> list[float]:
    """Expected tokens of a round without stops, by draft length: accepted ones and the one after them (0x05B).

    Args:
        reach (`Sequence[float]` of length `K`): as in [`survival`].

    Returns:
        `list[float]` of length `K + 1`: for drafts of `0 ... K` tokens; 1 for none.
    """
    return list(itertools.accumulate(survival(reach), initial=1.0))


def best_length(progress: Sequence[float], costs: Sequence[float]) -> int:
    """The draft length with the most progress per cost (0x05C): a ratio of expectations, as in the long run.

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
    if min(progress) < 1 or min(costs) <= 0:
        raise ValueError("Every round publishes at least one token and costs something.")
    return max(range(len(costs)), key=lambda length: (progress[length] / costs[length], -length))
