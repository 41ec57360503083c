"""What a call takes, on two clocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch


Result = TypeVar("Result")

CLOCKS = ("cpu", "wall")


@dataclass(frozen=True)
class Taken:
    """The time of one call, in seconds.

    Attributes:
        cpu (`float`): of the processor, all threads of this process together; what other programs take is not in it.
        wall (`float`): on the wall clock.
    """

    cpu: float
    wall: float


def timed(call: Callable[[], Result], device: torch.device) -> tuple[Result, Taken]:
    """Makes a call and says what it took, work left on the device included.

    Args:
        call (`Callable`): the call.
        device (`torch.device`): where it works.

    Returns:
        what it returned, and its time.
    """
    _finish(device)
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    _finish(device)
    return result, Taken(time.process_time() - cpu, time.perf_counter() - wall)


def fitting_clock(device: torch.device, threads: int) -> str:
    """The clock to judge by: CPU time for one thread on a CPU, where it is not disturbed by others; else wall time.

    With several threads CPU time is the sum of them all, and on an accelerator it is the time of launching.
    """
    return "cpu" if device.type == "cpu" and threads == 1 else "wall"


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
