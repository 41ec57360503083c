"""Row-addressed key/value cache: every row of a batch has its own length.

A slot is a column of the returned sequences. A forward writes the rows it is given to the slots named beforehand
([`RowCache.aim`]) and reads the slots up to the highest one written; a ready 4-D mask hides what a query may not see.
So going back is forgetting a length: no copy, no padding; stale slots are overwritten before any query can see them.
Layers with a sliding window store slots in a [`Ring`], since older ones are never seen again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from .ring import Ring


@dataclass(frozen=True)
class RowStates:
    """A row taken out of a cache.

    Attributes:
        tokens (`torch.LongTensor` of shape `(length,)`): the tokens the slots were made from.
        layers (`list`): keys and values `(heads, n, dim)` of the last slots per layer: all of them, or what a window
            leaves; `None` for a layer that stores nothing.
    """

    tokens: torch.Tensor
    layers: list[tuple[torch.Tensor, torch.Tensor] | None]


@dataclass
class WritePlan:
    """Where the next forward writes, shared by all layers.

    Attributes:
        start (`int`): first slot, where all rows write the same slots in order: a slice copy then does it.
        slots (`torch.LongTensor` of shape `(B, W)`, *optional*): the slots of each row where they differ.
        end (`int`): one past the highest slot written; attention reads the slots before it.
    """

    start: int = 0
    slots: torch.Tensor | None = None
    end: int = 0


class RowLayer(CacheLayerMixin):
    """Keys and values of one layer, `(B, heads, capacity, dim)`; every place below the plan's end is finite.

    The storage stays where the loaded states are. That may be main memory while the model runs on a device: a forward
    then brings the slots of one layer there, and only new states go back.

    Args:
        plan (`WritePlan`): the plan of the cache this layer belongs to.
        window (`int`, *optional*): sliding window in tokens, which the mask applies.
        ring (`Ring`, *optional*): where slots stand; everywhere else slot `s` stands at place `s`.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self, plan: WritePlan, window: int | None = None, ring: Ring | None = None) -> None:
        super().__init__()
        self.plan = plan
        self.window = window
        self.ring = ring

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Makes empty storage shaped after the first states."""
        self.keys = key_states.new_zeros((*key_states.shape[:2], 0, key_states.shape[3]))
        self.values = value_states.new_zeros((*value_states.shape[:2], 0, value_states.shape[3]))
        self.device = key_states.device
        self.is_initialized = True

    def load(self, keys: torch.Tensor, values: torch.Tensor, length: int) -> None:
        """Takes over states of another cache as the last slots below `length`; a sliding layer may hold fewer."""
        self.lazy_initialization(keys, values)
        self._reserve(length if self.ring is None else min(length, self.ring.size))
        held = keys.shape[2] if self.ring is None else min(keys.shape[2], self.ring.size)
        places = self.places(length - held, length)
        self.keys[:, :, places] = keys[:, :, keys.shape[2] - held :]
        self.values[:, :, places] = values[:, :, values.shape[2] - held :]

    def slots(self, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values `(B, heads, end - first, dim)` of slots in order; a ring holds the last ones alone."""
        places = self.places(first, end)
        return self.keys[:, :, places].contiguous(), self.values[:, :, places].contiguous()

    def places(self, first: int, end: int) -> slice | torch.Tensor:
        """Where slots stand: side by side, unless a ring begins anew among them."""
        if self.ring is None:
            return slice(first, end)
        start = first % self.ring.size
        if start + end - first <= self.ring.size:
            return slice(start, start + end - first)
        return torch.arange(first, end, device=self.keys.device) % self.ring.size

    def lay_out_anew(self, sources: torch.Tensor) -> None:
        """Moves states after the ring has grown; see [`Ring.grow`]."""
        sources = sources[:, : self._used].to(self.keys.device).clamp_max(self.keys.shape[2] - 1)
        rows = torch.arange(len(sources), device=self.keys.device)[:, None]
        self.keys, self.values = (
            store[rows, :, sources].transpose(1, 2).contiguous() for store in (self.keys, self.values)
        )

    @property
    def _used(self) -> int:
        """Places below the plan's end."""
        return self.plan.end if self.ring is None else min(self.plan.end, self.ring.size)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes `(B, heads, W, dim)` states to the planned slots; returns the places in use, beside them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        used, start = self._used, self.plan.start
        self._reserve(used)
        if self.plan.slots is not None:
            self._write_apart(self.plan.slots.to(self.keys.device), key_states, value_states)
        elif self.ring is None:
            # the usual case, for every layer of every forward: `narrow` takes less than indexing
            self.keys.narrow(2, start, key_states.shape[2]).copy_(key_states)
            self.values.narrow(2, start, key_states.shape[2]).copy_(value_states)
        else:
            places = self.places(start, start + key_states.shape[2])
            self.keys[:, :, places], self.values[:, :, places] = key_states, value_states
        keys, values = self.keys.narrow(2, 0, used), self.values.narrow(2, 0, used)
        if keys.device != key_states.device:
            return keys.to(key_states.device), values.to(key_states.device)
        return keys, values

    def _write_apart(self, slots: torch.Tensor, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Writes states to slots `(B, W)`, other ones in each row."""
        rows = torch.arange(len(slots), device=slots.device)[:, None]
        places = slots if self.ring is None else slots % self.ring.size
        for store, states in ((self.keys, key_states), (self.values, value_states)):
            store[rows, :, places] = states.transpose(1, 2).to(store.device)

    def _reserve(self, slots: int) -> None:
        """Grows the storage in steps of a twentieth, so that copies stay rare and unused slots few."""
        capacity = self.keys.shape[2]
        if slots <= capacity:
            return
        more = max(slots - capacity, capacity // 20, 4)
        self.keys, self.values = (
            torch.cat([store, store.new_zeros((*store.shape[:2], more, store.shape[3]))], dim=2)
            for store in (self.keys, self.values)
        )

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Slots attention will read, from slot 0."""
        return self.plan.end, 0

    def get_seq_length(self) -> int:
        """Slots in use before the planned write. Positions are always passed explicitly and never derived from it."""
        return self.plan.end

    def get_max_length(self) -> int:
        """No maximum."""
        return -1


class RowCache(Cache):
    """A [`~transformers.Cache`] of [`RowLayer`]s with one length per row.

    Args:
        windows (`Sequence[int | None]`): sliding window of each layer, `None` for full attention.
        keeps_all (`bool`): whether layers with a window store all slots too.

    Attributes:
        rings (`dict[int, Ring]`): those of the windows; empty if all slots are stored.
        lengths (`list[int]`): valid slots of each row; assign smaller numbers to crop.
        tokens (`torch.LongTensor` of shape `(B, capacity)`): the token each written slot was made from, so that a
            slot can be checked by identity; -1 where a prompt came as embeddings.
    """

    def __init__(self, windows: Sequence[int | None], keeps_all: bool = False) -> None:
        self.plan = WritePlan()
        self.rings = {} if keeps_all else {window: Ring(window) for window in windows if window is not None}
        rings = [None if window is None else self.rings.get(window) for window in windows]
        super().__init__(
            layers=[RowLayer(self.plan, window, ring) for window, ring in zip(windows, rings, strict=True)]
        )
        self.lengths: list[int] = []
        self.tokens = torch.zeros(0, 0, dtype=torch.long, device="cpu")

    def begin(self, input_ids: torch.Tensor, columns: int) -> None:
        """Names the tokens of a prompt whose states have been loaded into the layers.

        Args:
            input_ids (`torch.LongTensor` of shape `(B, P)`): the prompt; the last `columns` slots at most.
            columns (`int`): slots the prompt fills.
        """
        known = input_ids[:, max(input_ids.shape[1] - columns, 0) :]
        unknown = known.new_full((len(input_ids), columns - known.shape[1]), -1)
        self.tokens = torch.cat([unknown, known], dim=1)
        self.lengths = [columns] * len(input_ids)
        self.plan.end = columns
        for ring in self.rings.values():
            ring.begin(self.lengths, input_ids.device)

    def note(self, tokens: torch.Tensor) -> None:
        """Names the tokens `(B, W)` that the last forward has written to the planned slots."""
        missing = self.plan.end - self.tokens.shape[1]
        if missing > 0:
            more = self.tokens.new_full((len(self.tokens), max(missing, 64)), -1)
            self.tokens = torch.cat([self.tokens, more], dim=1)
        if self.plan.slots is None:
            self.tokens[:, self.plan.start : self.plan.start + tokens.shape[1]] = tokens
        else:
            self.tokens.scatter_(1, self.plan.slots, tokens)

    def aim_alike(self, start: int, slots: torch.Tensor) -> torch.Tensor:
        """Names slots that all rows write alike: those of `slots`, which counts from 0, from `start` on.

        Returns:
            `torch.LongTensor` of shape `(B, W)`: the slots.
        """
        self.plan.start, self.plan.slots, self.plan.end = start, None, len(slots)
        written = slots[start:].expand(len(self.lengths), -1)
        self._write_rings(written)
        return written

    def aim(self, slots: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
        """Names the slots the next forward writes.

        Args:
            slots (`Sequence[Sequence[int]]` of shape `(B, W)`): slots of each row's tokens.
            device (`torch.device`): where the returned tensor lives.

        Returns:
            `torch.LongTensor` of shape `(B, W)`: the slots.
        """
        first = list(slots[0])
        in_order = first == list(range(first[0], first[0] + len(first)))
        aligned = in_order and all(list(row) == first for row in slots)
        tensor = torch.tensor(slots, device=device)
        self.plan.start = first[0]
        self.plan.slots = None if aligned else tensor
        self.plan.end = max(max(row) for row in slots) + 1
        self._write_rings(tensor)
        return tensor

    def make_room(self, tokens: int) -> None:
        """Lets so many tokens be written one after the other and taken back, without loss of what a window sees."""
        for ring in self.rings.values():
            if ring.size - ring.window < tokens:
                sources = ring.grow(tokens)
                for layer in self.layers:
                    if layer.ring is ring and layer.is_initialized:
                        layer.lay_out_anew(sources)

    def _write_rings(self, slots: torch.Tensor) -> None:
        self.make_room(slots.shape[1])
        for ring in self.rings.values():
            ring.write(slots)

    def keep_rows(self, indices: Sequence[int]) -> None:
        """Drops all rows but the given ones. Interrupted, it can be called again in the same way."""
        before = len(self.lengths)
        for layer in self.layers:
            if layer.is_initialized:
                layer.keys = only_rows(layer.keys, indices, before)
                layer.values = only_rows(layer.values, indices, before)
        for ring in self.rings.values():
            ring.held = only_rows(ring.held, indices, before)
        self.tokens = only_rows(self.tokens, indices, before)
        self.lengths = [self.lengths[i] for i in indices]

    def take_row(self, index: int) -> RowStates:
        """A copy of one row's valid slots."""
        length = self.lengths[index]
        return RowStates(
            self.tokens[index, :length].clone(),
            [_last_of(layer, index, length) if layer.is_initialized else None for layer in self.layers],
        )

    def put_rows(self, rows: Sequence[RowStates]) -> None:
        """Becomes the batch of the given rows, as [`take_row`] returned them."""
        self.lengths = [len(row.tokens) for row in rows]
        capacity = max(self.lengths)
        self.tokens = torch.nn.utils.rnn.pad_sequence([row.tokens for row in rows], True, -1)
        for ring in self.rings.values():
            ring.begin(self.lengths, self.tokens.device)
        for number, layer in enumerate(self.layers):
            if not layer.is_initialized:
                continue
            states = [row.layers[number] for row in rows]
            for part, name in enumerate(("keys", "values")):
                pieces = [pair[part] for pair in states if pair is not None]
                places = capacity if layer.ring is None else layer.ring.size
                store = pieces[0].new_zeros((len(rows), pieces[0].shape[0], places, pieces[0].shape[2]))
                for target, piece, length in zip(store, pieces, self.lengths, strict=True):
                    target[:, layer.places(length - piece.shape[1], length)] = piece
                setattr(layer, name, store)


def _last_of(layer: RowLayer, row: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of one row's first `length` slots, or of those among them that a ring surely holds."""
    first = 0 if layer.ring is None else max(length - layer.ring.window, 0)
    places = layer.places(first, length)
    return layer.keys[row, :, places].clone(), layer.values[row, :, places].clone()


def only_rows(table: torch.Tensor, indices: Sequence[int], before: int) -> torch.Tensor:
    """The given rows of a table of `before` rows; one that has been cut already comes back as it is."""
    if table.shape[0] != before:
        return table
    return table.index_select(0, torch.tensor(list(indices), device=table.device))
