"""Tensors that are made once and asked for on a device with every token."""

from __future__ import annotations

import torch


class Placed:
    """A tensor, and a copy of it on every device it was asked for on.

    Args:
        tensor (`torch.Tensor`): not to be changed any more.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._copies = {tensor.device: tensor}
        self._tensor = tensor

    def on(self, device: torch.device) -> torch.Tensor:
        """The tensor on a device; the first time it is copied there."""
        if device not in self._copies:
            self._copies[device] = self._tensor.to(device)
        return self._copies[device]
