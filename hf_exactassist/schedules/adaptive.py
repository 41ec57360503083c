"""Draft as many tokens as pay: most expected tokens per second, which may be none (contract 0x05)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..ledger import best_length, progress_by_length, survival
from .acceptance import Acceptance
from .base import DraftSchedule
from .costs import RoundCosts


# rounds without a draft before one token is drafted to see whether things have changed
_LAST_DISTANCE = 64
# a round without drafts is timed once, to know what it takes, and now and then where the gain is smaller than this
_CLEAR_GAIN = 1.5


@dataclass
class _Past:
    """What is known of a row."""

    acceptance: Acceptance
    idle: int = 0
    distance: int = 1

    @property
    def rests(self) -> bool:
        """Whether no draft paid when one was last tried, and it is too early to try again."""
        return 0 < self.idle < self.distance

    def progress(self) -> list[float]:
        """Expected tokens of a round by draft length."""
        return progress_by_length(survival(self.acceptance.rates()))


class AdaptiveSchedule(DraftSchedule):
    """The draft length that pays best by what is known of acceptance and cost.

    Acceptance is learned for every row and position. Costs begin with an estimate from the models' shapes; where the
    text does not depend on draft lengths (greedy decoding, shared noise) times of rounds correct it, and the rows of a
    batch draft what pays for all of them together. Elsewhere the estimate stays, so that equal seeds give equal text.
    Where no draft pays, single tokens are tried at growing distances.

    Args:
        costs (`RoundCosts`): cost of a round by rows and draft length.
        limit (`int`): tokens of a draft at most.
    """

    costs: RoundCosts

    def __init__(self, costs: RoundCosts, limit: int = 16) -> None:
        self.limit = limit
        self.costs = costs
        self.start()

    def describe(self) -> dict[str, Any]:
        """See [`DraftSchedule.describe`]."""
        return {**super().describe(), "costs": self.costs.estimated(1, self.limit)}

    def start(self) -> None:
        """See [`DraftSchedule.start`]."""
        self._pasts: dict[int, _Past] = {}
        # whether the assistant has nothing to catch up on
        self._clocked = self._drafting = False

    def follow_clock(self) -> None:
        """See [`DraftSchedule.follow_clock`]."""
        self._clocked = True

    def length(self, row: int) -> int:
        """See [`DraftSchedule.length`]."""
        past = self._past(row)
        return 0 if past.rests else self._alone(past) or int(past.idle >= past.distance)

    def lengths(self, rows: Sequence[int]) -> list[int]:
        """See [`DraftSchedule.lengths`]. With a clock, one length for all rows: shorter drafts would save nothing."""
        if not self._clocked:
            return super().lengths(rows)
        pasts = [self._past(row) for row in rows]
        if all(past.rests for past in pasts):
            return [0] * len(rows)
        costs = self.costs.table(len(rows), self.limit)
        progress = [sum(each) for each in zip(*(past.progress() for past in pasts), strict=True)]
        length = best_length(progress, costs)
        if length == 0:
            return [int(any(past.idle >= past.distance for past in pasts))] * len(rows)
        gain = progress[length] / costs[length] * costs[0] / progress[0]
        known = self.costs.is_fresh(len(rows), 0) or (gain > _CLEAR_GAIN and self.costs.knows(0))
        return [length if known or not self._drafting else 0] * len(rows)

    def observe(self, row: int, drafted: int, accepted: int) -> None:
        """See [`DraftSchedule.observe`]."""
        past = self._past(row)
        if not drafted:
            past.idle += 1
            return
        past.acceptance.observe(drafted, accepted)
        past.idle = 0
        past.distance = 1 if self._alone(past) else min(past.distance * 2, _LAST_DISTANCE)

    def timed(self, rows: int, length: int, seconds: float) -> None:
        """See [`DraftSchedule.timed`]. A draft after none takes longer: the assistant reads what it has missed."""
        if self._drafting or length == 0:
            self.costs.observe(rows, length, seconds)
        self._drafting = length > 0

    def _alone(self, past: _Past) -> int:
        """The length that pays best for one row."""
        costs = (self.costs.table if self._clocked else self.costs.estimated)(1, self.limit)
        return best_length(past.progress(), costs)

    def _past(self, row: int) -> _Past:
        return self._pasts.setdefault(row, _Past(Acceptance(self.limit)))
