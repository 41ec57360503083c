"""Row-addressed key/value cache: every row of a batch has its own length.

A slot is a column of the returned sequences. A forward writes the rows it is given to the slots named beforehand
([`RowCache.aim`]) and reads the slots up to the highest one written; a ready 4-D mask hides what a query may not see.
So going back is forgetting a length: no copy, no padding; stale slots are overwritten before any query can see them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass(frozen=True)
class RowStates:
    """A row taken out of a cache.

    Attributes:
        tokens (`torch.LongTensor` of shape `(length,)`): the tokens the slots were made from.
        layers (`list`): keys and values `(heads, length, dim)` per layer, `None` for a layer that stores nothing.
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
    """Keys and values of one layer, `(B, heads, capacity, dim)`; every slot below the plan's end is finite.

    Args:
        plan (`WritePlan`): the plan of the cache this layer belongs to.
        window (`int`, *optional*): sliding window in tokens. Everything is stored; the mask applies the window.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self, plan: WritePlan, window: int | None = None) -> None:
        super().__init__()
        self.plan = plan
        self.window = window

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Makes empty storage shaped after the first states."""
        self.keys = key_states.new_zeros((*key_states.shape[:2], 0, key_states.shape[3]))
        self.values = value_states.new_zeros((*value_states.shape[:2], 0, value_states.shape[3]))
        self.device = key_states.device
        self.is_initialized = True

    def load(self, keys: torch.Tensor, values: torch.Tensor, length: int) -> None:
        """Takes over states of another cache as the last slots below `length`; a sliding layer may hold fewer."""
        self.lazy_initialization(keys, values)
        self._reserve(length)
        self.keys[:, :, length - keys.shape[2] : length] = keys
        self.values[:, :, length - values.shape[2] : length] = values

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes `(B, heads, W, dim)` states to the planned slots; returns the slots below the plan's end."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self._reserve(self.plan.end)
        for store, states in ((self.keys, key_states), (self.values, value_states)):
            if self.plan.slots is None:
                store[:, :, self.plan.start : self.plan.start + states.shape[2]] = states
            else:
                rows = torch.arange(states.shape[0], device=states.device)[:, None]
                store[rows, :, self.plan.slots.to(states.device)] = states.transpose(1, 2)
        return self.keys[:, :, : self.plan.end], self.values[:, :, : self.plan.end]

    def _reserve(self, slots: int) -> None:
        """Grows the storage in steps of a sixteenth, so that copies stay rare and unused slots few."""
        capacity = self.keys.shape[2]
        if slots <= capacity:
            return
        more = max(slots - capacity, capacity // 16, 32)
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

    Attributes:
        lengths (`list[int]`): valid slots of each row; assign smaller numbers to crop.
        tokens (`torch.LongTensor` of shape `(B, capacity)`): the token each written slot was made from, so that a
            slot can be checked by identity; -1 where a prompt came as embeddings.
    """

    def __init__(self, windows: Sequence[int | None]) -> None:
        self.plan = WritePlan()
        super().__init__(layers=[RowLayer(self.plan, window) for window in windows])
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
        return tensor

    def keep_rows(self, indices: Sequence[int]) -> None:
        """Drops all rows but the given ones. Interrupted, it can be called again in the same way."""
        before = len(self.lengths)
        for layer in self.layers:
            if layer.is_initialized:
                layer.keys = only_rows(layer.keys, indices, before)
                layer.values = only_rows(layer.values, indices, before)
        self.tokens = only_rows(self.tokens, indices, before)
        self.lengths = [self.lengths[i] for i in indices]

    def take_row(self, index: int) -> RowStates:
        """A copy of one row's valid slots."""
        length = self.lengths[index]
        return RowStates(
            self.tokens[index, :length].clone(),
            [
                (layer.keys[index, :, :length].clone(), layer.values[index, :, :length].clone())
                if layer.is_initialized
                else None
                for layer in self.layers
            ],
        )

    def put_rows(self, rows: Sequence[RowStates]) -> None:
        """Becomes the batch of the given rows, as [`take_row`] returned them."""
        self.lengths = [len(row.tokens) for row in rows]
        capacity = max(self.lengths)
        self.tokens = torch.nn.utils.rnn.pad_sequence([row.tokens for row in rows], True, -1)
        for number, layer in enumerate(self.layers):
            if not layer.is_initialized:
                continue
            states = [row.layers[number] for row in rows]
            for part, name in enumerate(("keys", "values")):
                pieces = [pair[part] for pair in states if pair is not None]
                store = pieces[0].new_zeros((len(rows), pieces[0].shape[0], capacity, pieces[0].shape[2]))
                for target, piece in zip(store, pieces, strict=True):
                    target[:, : piece.shape[1]] = piece
                setattr(layer, name, store)


def only_rows(table: torch.Tensor, indices: Sequence[int], before: int) -> torch.Tensor:
    """The given rows of a table of `before` rows; one that has been cut already comes back as it is."""
    if table.shape[0] != before:
        return table
    return table.index_select(0, torch.tensor(list(indices), device=table.device))
