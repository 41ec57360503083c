"""Draft lengths that look at nothing, or at the last round alone."""

from __future__ import annotations

from .base import DraftSchedule


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
