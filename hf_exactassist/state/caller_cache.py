"""The cache a caller passed in or will get back: plain `generate`'s object, holding exactly the returned sequence."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache

from .cache import RowCache


class CallerCache:
    """Leaves a [`~transformers.DynamicCache`] as it was while a call runs, and fills it in the end.

    Args:
        cache (`DynamicCache`, *optional*): the caller's cache, before prefill.
    """

    def __init__(self, cache: DynamicCache | None) -> None:
        self.cache = cache
        # prefill makes new tensors, so holding on to the old ones is a snapshot without a copy
        self._before = [{name: getattr(layer, name, None) for name in _FIELDS} for layer in self._own_layers]
        self.layers: list[Any] = list(self._own_layers)
        self._prepared: list[dict[str, Any]] = []

    @property
    def _own_layers(self) -> list[Any]:
        return [] if self.cache is None else self.cache.layers

    def take_back(self) -> None:
        """After prefill, whose states live elsewhere now: remembers the layers as it left them, and restores."""
        self.layers = list(self._own_layers)
        self._prepared = [
            {name: value for name, value in vars(layer).items() if not isinstance(value, torch.Tensor)}
            for layer in self.layers
        ]
        self.restore()

    def restore(self) -> None:
        """Puts the content from before the call back."""
        for layer, before in zip(self._own_layers, self._before, strict=False):
            for name, value in before.items():
                if hasattr(layer, name):
                    setattr(layer, name, value)
        # layers that the call added lazily
        del self._own_layers[len(self._before) :]

    def fill(self, rows: RowCache, length: int) -> DynamicCache | None:
        """Hands over the first `length` slots of every row. Interrupted, it can be called again.

        Args:
            rows (`RowCache`): rows in the order of the batch, each valid up to `length`; layer by layer it is emptied.
            length (`int`): tokens of the returned sequences that have been read, as after plain `generate`.

        Returns:
            `DynamicCache`: the caller's object.
        """
        self._own_layers[:] = self.layers
        for theirs, prepared, layer in zip(self.layers, self._prepared, rows.layers, strict=True):
            # one that has been handed over before an interruption
            if not layer.is_initialized or layer.keys is None:
                continue
            vars(theirs).update({name: value for name, value in prepared.items() if name not in ("keys", "values")})
            kept = slice(0, length)
            if theirs.is_sliding:
                kept = slice(max(length - theirs.sliding_window + 1, 0), length)
                theirs.cumulative_length = length
            theirs.keys, theirs.values = layer.keys[:, :, kept].contiguous(), layer.values[:, :, kept].contiguous()
            layer.keys = layer.values = None
        return self.cache


_FIELDS: tuple[Any, ...] = ("keys", "values", "is_initialized", "cumulative_length")
