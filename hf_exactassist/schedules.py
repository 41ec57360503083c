"""How many tokens each row drafts next.

A schedule may look only at the past of its own row, and of a round only at what was reached: accepted tokens and
whether the whole draft was accepted. Anything else would tie the draft length to random numbers that are used again
after a rejection, and bend the law.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from .state.manifest import settings_of


class DraftSchedule(ABC):
    """Draft length per row. Rows are original batch indices."""

    def describe(self) -> dict[str, Any]:
        """What the call's manifest says about the schedule: by default its class and public plain attributes."""
        return settings_of(self)

    def start(self) -> None:  # noqa: B027 - most schedules have nothing to forget
        """Forgets earlier calls. The default remembers nothing."""

    @abstractmethod
    def length(self, row: int) -> int:
        """Tokens row `row` should draft in the coming round, before its budget caps it."""

    def observe(self, row: int, drafted: int, accepted: int) -> None:  # noqa: B027 - or to learn
        """Tells the schedule how a round of `drafted` tokens ended. The default learns nothing."""


class ConstantSchedule(DraftSchedule):
    """The same draft length in every round.

    Args:
        num_assistant_tokens (`int`): draft length, at least 1.
    """

    def __init__(self, num_assistant_tokens: int) -> None:
        self.num_assistant_tokens = num_assistant_tokens

    def length(self, row: int) -> int:
        """See [`DraftSchedule.length`]."""
        return self.num_assistant_tokens


class HeuristicSchedule(DraftSchedule):
    """Two tokens more after a fully accepted draft, one less (never below 1) otherwise, as in Transformers.

    State lives with the call, so two equal calls draft alike.

    Args:
        num_assistant_tokens (`int`): draft length of the first round, at least 1.
    """

    def __init__(self, num_assistant_tokens: int) -> None:
        self.num_assistant_tokens = num_assistant_tokens
        self.start()

    def start(self) -> None:
        """See [`DraftSchedule.start`]."""
        self._lengths: dict[int, int] = {}

    def length(self, row: int) -> int:
        """See [`DraftSchedule.length`]."""
        return self._lengths.get(row, self.num_assistant_tokens)

    def observe(self, row: int, drafted: int, accepted: int) -> None:
        """See [`DraftSchedule.observe`]."""
        if drafted:
            self._lengths[row] = self.length(row) + 2 if accepted == drafted else max(1, self.length(row) - 1)
