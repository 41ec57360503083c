"""Where an evaluation is: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from .console import bar_with_time_left, say, to_stderr


_SECONDS_BETWEEN_LINES = 60


class Lines:
    """Lines for the log of a batch job: one at the start, then at most one a minute.

    Args:
        tell (`Callable[[str], None]`): writes a line.
        clock (`Callable[[], float]`): seconds since any moment.
    """

    def __init__(self, tell: Callable[[str], None] = say, clock: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._clock = tell, clock
        self._told: float | None = None
        # of what is now counted: how much there is, when it began, and what was done by then
        self._steps, self._began, self._first = 0, 0.0, 0

    def __call__(self, done: int, steps: int, label: str) -> None:
        """Takes notice of the steps done, of all steps, and of what comes next."""
        now = self._clock()
        if steps != self._steps or done < self._first:
            self._steps, self._began, self._first = steps, now, done
        if self._told is None or now - self._told >= _SECONDS_BETWEEN_LINES:
            self._told = now
            self._tell((f"{done} of {steps} steps done{self._left(done, now)}. Now: " if steps else "") + label)

    def _left(self, done: int, now: float) -> str:
        if done == self._first:
            return ""
        seconds = (now - self._began) / (done - self._first) * (self._steps - done)
        return f", {timedelta(seconds=round(seconds))} left"


@contextmanager
def progress(show: bool) -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar with the time to come and the present step on stderr if that is a terminal, else [`Lines`].

    Args:
        show (`bool`): `False` shows nothing.

    Yields:
        a function to call with the steps done, all steps, and what comes next.
    """
    console = to_stderr()
    if not show:
        yield lambda done, steps, label: None
        return
    if not console.is_terminal:
        yield Lines()
        return
    with bar_with_time_left() as bar:
        task = bar.add_task("", total=None)
        yield lambda done, steps, label: bar.update(task, completed=done, total=steps or None, description=label)
