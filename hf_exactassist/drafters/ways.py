"""Which of several ways of drafting a row takes next: the one whose drafts were accepted furthest of late.

All ways cost the same, so accepted tokens are what counts. Only rounds that are over count, and of them only what was
reached: the choice is known before the numbers that judge it, and the law stays the target's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


# how much a round counts for after each later round of its way
_DECAY = 0.9
# rounds until the others are tried again; twice as many after each trial that found nothing better
_FIRST_DISTANCE, _LAST_DISTANCE = 4, 64


@dataclass
class _Past:
    """Of one row: decayed sums of each way, and when the others are due."""

    accepted: dict[str, float] = field(default_factory=dict)
    rounds: dict[str, float] = field(default_factory=dict)
    uses: dict[str, int] = field(default_factory=dict)
    preferred: str = ""
    since: int = 0
    distance: int = _FIRST_DISTANCE

    def mean(self, way: str) -> float:
        return self.accepted[way] / self.rounds[way]


class Ways:
    """The choice for every row.

    Args:
        names (`Sequence[str]`): the ways, the likeliest first.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._pasts: dict[int, _Past] = {}

    def choose(self, row: int) -> str:
        """The way of a row's coming round; the same until [`observe`] is told how that round ended."""
        past = self._pasts.setdefault(row, _Past())
        untried = [way for way in self._names if way not in past.uses]
        if untried:
            return untried[0]
        others = [way for way in self._names if way != past.preferred]
        return min(others, key=past.uses.__getitem__) if others and past.since >= past.distance else past.preferred

    def observe(self, row: int, accepted: int) -> None:
        """Learns how many drafted tokens of a row were accepted in a round of the chosen way."""
        way, past = self.choose(row), self._pasts[row]
        past.accepted[way] = past.accepted.get(way, 0.0) * _DECAY + accepted
        past.rounds[way] = past.rounds.get(way, 0.0) * _DECAY + 1
        past.uses[way] = past.uses.get(way, 0) + 1
        past.since += 1
        if len(past.uses) < len(self._names):
            return
        best = max(self._names, key=past.mean)
        if way != past.preferred and past.preferred:
            past.since = 0
            past.distance = _FIRST_DISTANCE if way == best else min(past.distance * 2, _LAST_DISTANCE)
        past.preferred = best
