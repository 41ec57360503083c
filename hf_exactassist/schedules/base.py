"""How many tokens each row drafts next.

A schedule may look only at the past of its own row, and of a round only at what was reached: accepted tokens and
whether the whole draft was accepted. Anything else would tie the draft length to random numbers that are used again
after a rejection, and bend the law. Times hang on more than the past, so only calls whose text does not depend on
draft lengths tell them ([`DraftSchedule.follow_clock`]).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ..state.manifest import settings_of
from .costs import RoundCosts


class DraftSchedule(ABC):
    """Draft length per row. Rows are original batch indices.

    Attributes:
        costs (`RoundCosts`, *optional*): what rounds of the pair cost, where that is known; told with the counters.
    """

    costs: RoundCosts | None = None
    # whether it wants to be asked, token by token, if a draft goes on
    watches = False

    def describe(self) -> dict[str, Any]:
        """What the call's manifest says about the schedule: by default its class and public plain attributes."""
        return settings_of(self)

    def start(self) -> None:  # noqa: B027 - most schedules have nothing to forget
        """Forgets earlier calls. The default remembers nothing."""

    def expect(self, unread: Sequence[int], left: int) -> None:  # noqa: B027 - or to learn
        """Tells what lies before a call: known before any random number, and for each row whatever its batch.

        Args:
            unread (`Sequence[int]`): of each row, the tokens that the drafter must read before its first draft.
            left (`int`): tokens that a row may get. It is the most: a row may end earlier, which nobody knows.
        """

    @abstractmethod
    def length(self, row: int) -> int:
        """Tokens row `row` should draft in the coming round, before its budget caps it."""

    def observe(self, row: int, drafted: int, accepted: int) -> None:  # noqa: B027 - or to learn
        """Tells the schedule how a round of `drafted` tokens ended. The default learns nothing."""

    def lengths(self, rows: Sequence[int]) -> list[int]:
        """Draft length of each active row. By default every row is asked alone."""
        return [self.length(row) for row in rows]

    def follow_clock(self) -> None:  # noqa: B027 - or to learn
        """Times will be told, and rows may look at each other: greedy text, and shared noise, is the same anyway."""

    def goes_on(self, rows: Sequence[int], confidences: Sequence[Sequence[float]]) -> bool:
        """Whether drafts are worth one more token. Only asked where times are told, and a look costs nothing.

        Args:
            rows (`Sequence[int]`): the active rows.
            confidences (`Sequence[Sequence[float]]`): of each, the drafter's own probability of the tokens so far.
        """
        return True

    def timed(self, rows: int, length: int, seconds: float) -> None:  # noqa: B027 - or to learn
        """Tells how long a round of `rows` rows with drafts of up to `length` tokens took, judging included."""
