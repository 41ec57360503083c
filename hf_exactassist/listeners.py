"""Those who have to learn of a published round: drafter and schedule, the acceptance log, the streamer."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any

from .acceptance_log import AcceptanceLog
from .drafters.base import Drafter
from .interrupts import held_back
from .records import RoundCommit
from .schedules import DraftSchedule
from .state.rows import Rows


class Listeners:
    """Tells each of them once, in order, and goes on where an interruption left off.

    Nobody is told twice, not even one who failed: what it raises is the caller's to see, and takes nothing back.

    Args:
        rows (`Rows`): the published state, which says what there is to tell.
        drafter (`Drafter`): learns how its draft ended.
        schedule (`DraftSchedule`): the same, row by row.
        log (`AcceptanceLog`, *optional*): gets the round's records.
        streamer (`BaseStreamer`, *optional*): gets complete columns.

    Attributes:
        staged (`dict`): commits made for the present generation, each with what the log is to be told of it.
        ends_streamer (`bool`): whether to end the streamer when all is told.
    """

    def __init__(
        self, rows: Rows, drafter: Drafter, schedule: DraftSchedule, log: AcceptanceLog | None, streamer: Any
    ) -> None:
        self.rows, self.drafter, self.schedule, self.log, self.streamer = rows, drafter, schedule, log, streamer
        self.staged: dict[RoundCommit, list[Callable[[], None]]] = {}
        self.ends_streamer = False
        self.streamed = rows.prompt_length
        self._told: Any = None
        self._learners: deque[Callable[[], None]] = deque()
        self._records: deque[Callable[[], None]] = deque()

    def settle(self) -> None:
        """Tells what there is to tell."""
        commit = self.rows.state.last
        if self._learners or (commit is not None and commit is not self._told):
            # the next drafts depend on what drafter and schedule know, so Ctrl-C waits until both know it
            with held_back():
                self._take_up(commit)
                _tell(self._learners)
        _tell(self._records)
        self._stream()
        if not self.rows.active:
            self.close()
            if self.ends_streamer and self.streamer is not None:
                self.ends_streamer = False
                self.streamer.end()

    def _take_up(self, commit: Any) -> None:
        if commit is self._told:
            return
        self._told = commit
        self._learners.append(functools.partial(self.drafter.observe, commit))
        for row, drafted, accepted in zip(commit.rows, commit.drafted, commit.accepted, strict=True):
            self._learners.append(functools.partial(self.schedule.observe, row, drafted, accepted))
        for staged, records in self.staged.items():
            self._records.extend(records if staged == commit else ())
        self.staged = {}

    def _stream(self) -> None:
        """Gives the streamer the columns that are complete, one token per row at a time as plain `generate` does."""
        end = self.rows.complete_columns()
        if self.streamer is not None:
            for column in range(self.streamed, end):
                # counted first: a token a streamer failed on is not given to it again
                self.streamed = column + 1
                self.streamer.put(self.rows.ids[:, column].cpu())
        self.streamed = end

    def close(self) -> None:
        """Closes the log."""
        if self.log is not None:
            self.log.close()


def _tell(deliveries: deque[Callable[[], None]]) -> None:
    while deliveries:
        # taken off first
        deliveries.popleft()()
