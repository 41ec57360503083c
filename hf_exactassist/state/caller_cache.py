"""The cache a caller passed in or will get back: plain `generate`'s object, holding exactly the returned sequence."""

from __future__ import annotations

from typing import Any

from transformers import DynamicCache

from .cache import RowCache


class CallerCache:
    """Gives a [`~transformers.DynamicCache`] its content back, after success or failure.

    Args:
        cache (`DynamicCache`): the caller's cache, before prefill.
    """

    def __init__(self, cache: DynamicCache) -> None:
        self.cache = cache
        # prefill makes new tensors, so holding on to the old ones is a snapshot without a copy
        self._before = [{name: getattr(layer, name, None) for name in _FIELDS} for layer in cache.layers]

    def restore(self) -> None:
        """Puts the content from before the call back."""
        for layer, before in zip(self.cache.layers, self._before, strict=False):
            for name, value in before.items():
                if hasattr(layer, name):
                    setattr(layer, name, value)
        # layers that the call added lazily
        del self.cache.layers[len(self._before) :]

    def fill(self, rows: RowCache, length: int) -> DynamicCache:
        """Hands over the first `length` slots of every row.

        Args:
            rows (`RowCache`): rows in the order of the batch, each valid up to `length`.
            length (`int`): tokens of the returned sequences that have been read, as after plain `generate`.

        Returns:
            `DynamicCache`: the caller's object.
        """
        for theirs, layer in zip(self.cache.layers, rows.layers, strict=True):
            if not layer.is_initialized:
                continue
            kept = slice(0, length)
            if theirs.is_sliding:
                kept = slice(max(length - theirs.sliding_window + 1, 0), length)
                theirs.cumulative_length = length
            theirs.keys, theirs.values = layer.keys[:, :, kept].contiguous(), layer.values[:, :, kept].contiguous()
            layer.keys = layer.values = None
        return self.cache


_FIELDS: tuple[Any, ...] = ("keys", "values", "is_initialized", "cumulative_length")
