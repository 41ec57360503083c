"""Several processes that share an evaluation, as `accelerate launch` starts them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ..errors import ProcessEnded


# the first to be done waits for the last, and units may take hours
_LONGEST_WAIT = timedelta(days=30)
# where torchrun and MPI, through which `accelerate launch` starts processes, write how many there are
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


@dataclass(frozen=True)
class Processes:
    """This process among those that share the work.

    One that fails ends with its error. Its launcher then ends the others (`accelerate launch` does), and what is
    recorded stays: no process answers for another, and none waits for one that is gone.

    Attributes:
        rank (`int`): its number, from 0.
        count (`int`): how many there are.
        state (`accelerate.PartialState`, *optional*): connects them.
    """

    rank: int = 0
    count: int = 1
    state: Any = None

    @property
    def is_first(self) -> bool:
        """Whether it is the one that reports."""
        return self.rank == 0

    @property
    def device(self) -> str | None:
        """Where its models should be; `None` alone."""
        return None if self.state is None else str(self.state.device)

    def wait(self) -> None:
        """Waits until all have come here.

        Raises:
            ProcessEnded: one of them has ended before.
        """
        if self.state is None:
            return
        try:
            self.state.wait_for_everyone()
        except RuntimeError as error:
            # torch tells of a connection that broke, and not why
            raise ProcessEnded(
                f"Another process of this evaluation has ended (seen by process {self.rank + 1} of {self.count}): "
                "mend what it told, and the same command goes on."
            ) from error


def started_processes(on_cpu: bool) -> Processes:
    """The processes that a launcher has started this one with, by the environment; or this one alone.

    Args:
        on_cpu (`bool`): whether models are on CPUs.
    """
    if all(int(os.environ.get(name, "1")) < 2 for name in _SIZES):
        return Processes()
    from accelerate import PartialState

    state = PartialState(cpu=on_cpu, timeout=_LONGEST_WAIT)
    return Processes(state.process_index, state.num_processes, state)
