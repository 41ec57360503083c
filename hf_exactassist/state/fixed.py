"""Storage for compiled forwards: tensors whose shapes repeat from call to call and whose addresses stay.

Rows and slots are rounded up to powers of two, so that a few shapes serve prompts and batches of every size. The
layers of a [`RowCache`] see the part in use as views; where something gives them new tensors (rows that leave, a
forward that is not compiled), these are copied in before the next forward.
"""

from __future__ import annotations

from typing import Any

import torch

from .cache import RowCache


# slots of the smallest storage: most short calls share one shape, and reading masked slots is cheap up to here
SMALLEST = 256


def rounded(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()


class FixedStorage:
    """Keys, values and tokens of a [`RowCache`] in tensors `(R, heads, C, dim)` and `(R, C)`.

    Attributes:
        rows (`int`): `R`, at least the cache's rows; the rest is filler.
        slots (`int`): `C`.
        keys (`list[torch.Tensor | None]`): of each layer; `None` where a layer stores nothing.
        values (`list[torch.Tensor | None]`): likewise.
        tokens (`list[torch.LongTensor | None]`): one tensor, the token each slot was made from.
    """

    def __init__(self) -> None:
        self.rows = self.slots = 0
        self.keys: list[torch.Tensor | None] = []
        self.values: list[torch.Tensor | None] = []
        self.tokens: list[torch.Tensor | None] = [None]
        # the views that were given out
        self._views: dict[tuple[int, str], torch.Tensor] = {}

    def hold(self, cache: RowCache, slots: int) -> None:
        """Makes the layers of a cache, and its tokens, views of this storage with room for so many slots."""
        rows = rounded(len(cache.lengths))
        slots = max(self.slots, rounded(max(slots, SMALLEST, *cache.lengths)))
        if (rows, slots) != (self.rows, self.slots):
            self.rows, self.slots = rows, slots
            self.keys, self.values = [None] * len(cache.layers), [None] * len(cache.layers)
            self.tokens = [None]
            self._views.clear()
        for number, layer in enumerate(cache.layers):
            if layer.is_initialized:
                self._hold(self.keys, number, layer, "keys")
                self._hold(self.values, number, layer, "values")
        self._hold(self.tokens, 0, cache, "tokens")

    def _hold(self, stores: list[torch.Tensor | None], number: int, holder: Any, name: str) -> None:
        part, key = getattr(holder, name), (number, name)
        if part is self._views.get(key):
            return
        place = 1 if name == "tokens" else 2
        store = stores[number]
        if store is None:
            shape = list(part.shape)
            shape[0], shape[place] = self.rows, self.slots
            stores[number] = store = part.new_zeros(shape)
        used = min(part.shape[place], self.slots)
        view = store[: len(part)]
        view.narrow(place, 0, used).copy_(part.narrow(place, 0, used))
        # last, so that an interruption leaves the holder as it was
        self._views[key] = view
        setattr(holder, name, view)
