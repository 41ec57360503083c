"""Draft as many tokens as pay: most expected tokens per second, which may be none (contract 0x05)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..ledger import best_length, progress_by_length, survival
from .acceptance import Acceptance
from .base import DraftSchedule
from .costs import RoundCosts
from .experience import Experience


# rounds without a draft before one token is drafted to see whether things have changed
_LAST_DISTANCE = 64
# a round without drafts is timed once, to know what it takes, and now and then where the gain is smaller than this
_CLEAR_GAIN = 1.5
# tokens of the first drafts: finding out that an assistant is of no use should cost little
_FIRST = 4
# what may be bet on a try of one token: this share of what the tokens that are left take without drafts
_BET = 0.05


@dataclass
class _Past:
    """What is known of a row."""

    acceptance: Acceptance
    # tokens it may still get, and those the assistant has not read
    left: float
    unread: int
    # the longest draft that what has been accepted so far speaks for
    most: int = _FIRST
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

    Before a draft the assistant reads what it has not read, which may be a long prompt. So a draft must pay for that
    too, by what it is expected to save on all the tokens that are left; and a mere try must cost little beside them.
    Both are estimates, the same in every batch. A row may end before it has got all its tokens: then less is saved
    than was expected.

    Args:
        costs (`RoundCosts`): cost of a round by rows and draft length.
        limit (`int`): tokens of a draft at most.
        experience (`Experience`, *optional*): of earlier calls, for greedy decoding and shared noise; grows with each.
    """

    costs: RoundCosts
    watches = True

    def __init__(self, costs: RoundCosts, limit: int = 16, experience: Experience | None = None) -> None:
        self.limit = limit
        self.costs = costs
        self._experience = Experience() if experience is None else experience
        self.start()

    def describe(self) -> dict[str, Any]:
        """See [`DraftSchedule.describe`]."""
        return {
            **super().describe(),
            "costs": self.costs.estimated(1, self.limit),
            "reading": self.costs.catching_up(1, 1),
        }

    def start(self) -> None:
        """See [`DraftSchedule.start`]."""
        self._pasts: dict[int, _Past] = {}
        self._unread: Sequence[int] = ()
        self._left = math.inf
        # of each row, how sure the drafter is of the draft that is being judged; none where it does not say
        self._sure: dict[int, Sequence[float]] = {}
        self._asked = False
        # as long as no length has been chosen, drafts go on
        self._table, self._speed = self.costs.estimated(1, self.limit), 0.0
        # whether the assistant has nothing to catch up on
        self._clocked = self._drafting = False

    def expect(self, unread: Sequence[int], left: int) -> None:
        """See [`DraftSchedule.expect`]."""
        self._unread, self._left = unread, left

    def follow_clock(self) -> None:
        """See [`DraftSchedule.follow_clock`]."""
        self._clocked = True
        self.costs.fade()

    def length(self, row: int) -> int:
        """See [`DraftSchedule.length`]."""
        past = self._past(row)
        return 0 if past.rests else self._best([past])[0] or int(self._tries([past]))

    def lengths(self, rows: Sequence[int]) -> list[int]:
        """See [`DraftSchedule.lengths`]. With a clock, one length for all rows: shorter drafts would save nothing."""
        if not self._clocked:
            return super().lengths(rows)
        pasts = [self._past(row) for row in rows]
        if all(past.rests for past in pasts):
            return [0] * len(rows)
        length, gain = self._best(pasts)
        if length == 0:
            return [int(self._tries(pasts))] * len(rows)
        known = self.costs.is_fresh(len(rows), 0) or (gain > _CLEAR_GAIN and self.costs.knows(0))
        if not known and self._drafting:
            return [0] * len(rows)
        # a drafter that asks as it goes ends its drafts itself
        return [self._most(pasts) if self._asked else length] * len(rows)

    def goes_on(self, rows: Sequence[int], confidences: Sequence[Sequence[float]]) -> bool:
        """See [`DraftSchedule.goes_on`]: while one more token brings more than its time would bring elsewhere."""
        self._sure, self._asked = dict(zip(rows, confidences, strict=True)), True
        drafted = len(confidences[0])
        if drafted >= self._most([self._past(row) for row in rows]):
            return False
        gain = 0.0
        for row, sure in self._sure.items():
            overall = self._past(row).acceptance.overall()
            gain += math.prod(self._experience.confidence.rate(each, overall) for each in sure) * overall
        return gain > self._speed * (self._table[drafted + 1] - self._table[drafted])

    def observe(self, row: int, drafted: int, accepted: int) -> None:
        """See [`DraftSchedule.observe`]."""
        past = self._past(row)
        past.left -= accepted + 1
        if not drafted:
            past.idle += 1
            past.unread += 1
            return
        past.acceptance.observe(drafted, accepted)
        past.most += 2 * accepted
        for place, confidence in enumerate(self._sure.pop(row, ())[: min(accepted + 1, drafted)]):
            self._experience.confidence.observe(confidence, place < accepted)
        if self._clocked:
            self._experience.observe(drafted, accepted)
        past.idle = past.unread = 0
        past.distance = 1 if self._best([past])[0] else min(past.distance * 2, _LAST_DISTANCE)

    def timed(self, rows: int, length: int, seconds: float) -> None:
        """See [`DraftSchedule.timed`]. A draft after none takes longer: the assistant reads what it has missed."""
        if self._drafting or length == 0:
            self.costs.observe(rows, length, seconds)
        self._drafting = length > 0

    def _best(self, pasts: Sequence[_Past]) -> tuple[int, float]:
        """The length that pays best for some rows together, and how many times as fast as none that is.

        None if it saves less than the reading before it takes.
        """
        costs = (self.costs.table if self._clocked else self.costs.estimated)(len(pasts), self.limit)
        progress = [sum(each) for each in zip(*(past.progress() for past in pasts), strict=True)]
        # a draft ends one token before the last that is left
        sizes = max(int(min(self.limit + 1, max(past.left for past in pasts))), 1)
        length = best_length(progress[:sizes], costs[:sizes])
        # tokens per second of all rows, beside which one token more is judged
        self._table, self._speed = costs, progress[length] / costs[length]
        gain = self._speed * costs[0] / progress[0]
        return (min(length, self._most(pasts)), gain) if 1 - 1 / gain > self._reading(pasts) else (0, 1.0)

    def _most(self, pasts: Sequence[_Past]) -> int:
        """The longest draft of some rows together."""
        return min(self.limit, max(past.most for past in pasts))

    def _tries(self, pasts: Sequence[_Past]) -> bool:
        """Whether it is time to see if things have changed, and that costs little."""
        return any(past.idle >= past.distance for past in pasts) and self._reading(pasts) <= _BET

    def _reading(self, pasts: Sequence[_Past]) -> float:
        """What the reading before a draft takes, as a share of what all tokens that are left take without drafts."""
        rounds = self.costs.catching_up(len(pasts), sum(past.unread for past in pasts))
        return rounds * len(pasts) / max(sum(past.left for past in pasts), 1)

    def _past(self, row: int) -> _Past:
        if row not in self._pasts:
            unread = self._unread[row] if self._unread else 0
            # other calls, and other rows, count only where the text cannot depend on them
            known = (self._experience.rate(), self._experience.weight()) if self._clocked else ()
            self._pasts[row] = _Past(Acceptance(self.limit, *known), self._left, unread)
        return self._pasts[row]
