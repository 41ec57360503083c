"""Torch's threads for the length of a command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Sets torch's threads for a while."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
