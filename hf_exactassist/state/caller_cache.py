"""The cache a caller passed in or will get back: plain `generate`'s object, holding exactly the returned sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import Cache, DynamicLayer, StaticLayer

from ..errors import UnsupportedCache
from .cache import RowCache, RowLayer


_FIELDS: tuple[Any, ...] = ("keys", "values", "is_initialized", "cumulative_length")


class CallerCache:
    """Leaves a [`~transformers.DynamicCache`] as it was while a call runs, and fills it in the end.

    Args:
        cache (`DynamicCache`, *optional*): the caller's cache, before prefill.
    """

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        # prefill makes new tensors, so holding on to the old ones is a snapshot without a copy
        self._before: list[dict[str, Any]] = [
            {name: getattr(layer, name, None) for name in _FIELDS} for layer in self._own_layers
        ]
        self._owned = list(self._own_layers)
        self.layers: list[Any] = list(self._own_layers)
        self._prepared: list[dict[str, Any]] = []

    @property
    def _own_layers(self) -> list[Any]:
        return [] if self.cache is None else self.cache.layers

    def wants_all(self, windows: Sequence[int | None]) -> bool:
        """Whether it holds more of a layer with a window than the window: without a config, or recording its past.

        Args:
            windows (`Sequence[int | None]`): window of each of the model's layers.
        """
        layers = [*self._own_layers, *[None] * (len(windows) - len(self._own_layers))]
        return any(
            window is not None and (layer is None or not layer.is_sliding or getattr(layer, "record_past", False))
            for window, layer in zip(windows, layers, strict=False)
        )

    def lend(self) -> Cache | None:
        """The cache that prefill fills."""
        return self.cache

    def take_back(self, rows: RowCache, slots: int) -> None:
        """After prefill, whose states live elsewhere now: remembers the layers as it left them, and restores.

        Args:
            rows (`RowCache`): where the states live.
            slots (`int`): slots that the longest row may fill.

        Raises:
            UnsupportedCache: the cache cannot hold them.
        """
        self.layers = list(self._own_layers)
        self._prepared = [
            {name: value for name, value in vars(layer).items() if not isinstance(value, torch.Tensor)}
            for layer in self.layers
        ]
        self.restore()

    def restore(self) -> None:
        """Puts the content from before the call back."""
        for layer, before in zip(self._owned, self._before, strict=True):
            for name, value in before.items():
                if hasattr(layer, name):
                    setattr(layer, name, value)
        # without layers that the call added lazily
        self._own_layers[:] = self._owned

    def fill(self, rows: RowCache, length: int) -> DynamicCache | None:
        """Hands over the first `length` slots of every row. Interrupted, it can be called again.

        Args:
            rows (`RowCache`): rows in the order of the batch, each valid up to `length`; layer by layer it is emptied.
            length (`int`): tokens of the returned sequences that have been read, as after plain `generate`.

        Returns:
            `DynamicCache`: the caller's object.
        """
        self._own_layers[:] = self.layers
        for number, (prepared, layer) in enumerate(zip(self._prepared, rows.layers, strict=True)):
            # one that has been handed over before an interruption
            if not layer.is_initialized or layer.keys is None:
                continue
            attributes = {name: value for name, value in prepared.items() if name not in ("keys", "values")}
            vars(self.layers[number]).update(attributes)
            self._grow(number, layer, length)
            layer.keys = layer.values = None
        return self.cache

    def adopt(self, past: Any) -> Any:
        """Hands over the cache of a row that ran alone over a copy: in the caller's object, if there is one."""
        if self.cache is None:
            return past
        self.cache.layers[:] = past.layers
        return self.cache

    def _grow(self, number: int, layer: RowLayer, length: int) -> None:
        """Gives a dynamic layer the first `length` slots of all rows, or those of them that a window leaves."""
        theirs, first = self._own_layers[number], 0
        if theirs.is_sliding:
            first = max(length - theirs.sliding_window + 1, 0)
            if getattr(theirs, "record_past", False):
                # keeps what it had and all that came, so that the caller can crop it
                before = self._before[number]
                first = before["cumulative_length"] - (0 if before["keys"] is None else before["keys"].shape[2])
            theirs.cumulative_length = length
        theirs.keys, theirs.values = layer.slots(first, length)


class CopiedCache(CallerCache):
    """Leaves a static or offloaded cache alone while a call runs over a copy of it, and writes into it in the end.

    Static storage is written in place, because compiled code may know its address. Where the cache is offloaded the
    copy is too: its states stay in main memory, but for one layer at a time.

    Args:
        cache (`StaticCache` or `DynamicCache`): the caller's cache, before prefill.
    """

    def __init__(self, cache: Any) -> None:
        super().__init__(cache)
        if cache.offloading:
            # an earlier call may have left a layer on its way to the device
            cache.prefetch_stream.synchronize()
        self._lengths = [int(layer.get_seq_length()) for layer in cache.layers]
        self._untouched = [dict(vars(layer)) for layer in cache.layers]
        # static layers count in a tensor, in place
        self._counters = [int(getattr(layer, "cumulative_length", 0)) for layer in cache.layers]
        # what static windows held before they moved on, by layer
        self._overwritten: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._devices: list[Any] = []
        self._prompt = 0

    def lend(self) -> Cache | None:
        """A copy of the cache. Layers with a window have the slots they have forgotten too, masked and empty."""
        lent = DynamicCache()
        lent.layer_class_to_replicate = _OffloadedLayer if self.cache.offloading else DynamicLayer
        for theirs, length in zip(self.cache.layers, self._lengths, strict=True):
            lent.layers.append(lent.layer_class_to_replicate())
            if length:
                keys, values = (_last(part, length).to(theirs.device) for part in (theirs.keys, theirs.values))
                lent.layers[-1].update(keys, values)
        self.layers = lent.layers
        return lent

    def take_back(self, rows: RowCache, slots: int) -> None:
        """After prefill over the copy: remembers it, and refuses static storage that cannot hold the call."""
        self._prompt = rows.lengths[0]
        self._devices = [getattr(layer, "device", None) for layer in self.layers]
        self.layers = list(self._own_layers)
        for theirs, layer in zip(self.layers, rows.layers, strict=False):
            if not isinstance(theirs, StaticLayer):
                continue
            window = layer.window if theirs.is_sliding else None
            needed = slots if window is None else min(slots, window)
            if theirs.max_cache_len < needed:
                raise UnsupportedCache(
                    f"A {type(theirs).__name__} of the cache holds {theirs.max_cache_len} tokens, and this call may "
                    f"fill {needed}: pass `StaticCache(config=model.config, max_cache_len={slots})`, or lower "
                    "`max_new_tokens`."
                )
            alike = len(self.layers) == len(rows.layers)
            if theirs.is_initialized and layer.is_initialized:
                alike &= _like(theirs) == _like(layer)
            if not alike:
                raise UnsupportedCache(
                    "The static cache was made for another batch size, model or dtype: pass a new `StaticCache`."
                )

    def restore(self) -> None:
        """Undoes what [`fill`] has done."""
        del self._own_layers[len(self._untouched) :]
        for layer, before, counter in zip(self._own_layers, self._untouched, self._counters, strict=True):
            vars(layer).clear()
            vars(layer).update(before)
            if isinstance(layer, StaticLayer):
                layer.cumulative_length.fill_(counter)
        for number, (keys, values) in self._overwritten.items():
            self._own_layers[number].keys.copy_(keys)
            self._own_layers[number].values.copy_(values)
        self._overwritten.clear()

    def fill(self, rows: RowCache, length: int) -> Any:
        """Writes the first `length` slots of every row into the caller's object; see [`CallerCache.fill`]."""
        own = self._own_layers
        own += [self.cache.layer_class_to_replicate() for _ in rows.layers[len(own) :]]
        for number, (theirs, layer) in enumerate(zip(own, rows.layers, strict=True)):
            # one that has been handed over before an interruption
            if layer.keys is None:
                continue
            if not theirs.is_initialized:
                device = self._devices[number]
                theirs.lazy_initialization(layer.keys[:, :, :0].to(device), layer.values[:, :, :0].to(device))
            if isinstance(theirs, StaticLayer):
                self._write(number, layer, length)
            else:
                self._grow(number, layer, length)
            if self._offloads(theirs):
                theirs.offload()
            else:
                theirs.prefetch()
            layer.keys = layer.values = None
        # as after every forward, the first offloaded layer waits on the device for the next one
        for theirs in filter(self._offloads, own):
            theirs.prefetch()
            break
        return self.cache

    def _offloads(self, layer: Any) -> bool:
        return self.cache.offloading and not (self.cache.only_non_sliding and layer.is_sliding)

    def _write(self, number: int, layer: RowLayer, length: int) -> None:
        """Writes into static storage; what stood there before the call stays, or is kept for [`restore`]."""
        theirs, first = self._own_layers[number], self._lengths[number]
        if theirs.is_sliding:
            if length > theirs.max_cache_len and first:
                self._overwritten.setdefault(number, (theirs.keys.clone(), theirs.values.clone()))
                first = 0
            theirs.cumulative_length_int = length
        held = min(length, theirs.max_cache_len)
        for target, states in zip(
            (theirs.keys, theirs.values), layer.slots(length - held + first, length), strict=True
        ):
            target[:, :, first:held] = states
        # a window that the prompt overfills at once no longer counts there
        if self._prompt <= theirs.max_cache_len:
            theirs.cumulative_length.fill_(held)


class _OffloadedLayer(DynamicLayer):
    """Keeps its states in main memory while other layers are read."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.prefetch()
        keys, values = super().update(key_states, value_states)
        self.keys, self.values = keys.cpu(), values.cpu()
        return keys, values


def _last(states: torch.Tensor, length: int) -> torch.Tensor:
    """The states of `length` tokens, of which the last ones are stored; zeros stand for the others."""
    stored = states[:, :, :length]
    return torch.nn.functional.pad(stored, (0, 0, length - stored.shape[2], 0))


def _like(layer: Any) -> tuple[Any, ...]:
    """What two layers must share for one's states to fit into the other."""
    batch, heads, _, size = layer.keys.shape
    return batch, heads, size, layer.keys.dtype


def keeper(cache: Any) -> CallerCache:
    """What keeps a cache for the caller.

    Args:
        cache (`Cache`, *optional*): an admitted cache, before prefill.
    """
    apart = isinstance(cache, StaticCache) or getattr(cache, "offloading", False)
    return CopiedCache(cache) if apart else CallerCache(cache)
