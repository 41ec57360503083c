"""Ragged rows whose blocks run through `torch.compile`.

A compiled forward is made for one shape: rows and slots are powers of two, a block is filled up to one of a few
widths, and attention reads all of the storage behind a mask. What differs from round to round (tokens, slots, padding)
comes in tensors, and slots, positions and masks follow from them inside the graph. So prompts of every length share
it, and no Python decides anything on the way. Prompts are read as plain `generate` reads them, wide blocks too.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from ..state.fixed import FixedStorage
from ..state.layout import visibility
from . import compat
from .hooks import hooks_of
from .runner import RowRunner


# what compiles; tests put a backend here that counts
BACKEND: str | Callable[..., Any] = "inductor"
# forwards compiled so far in this process: a round that waited for one does not say what rounds take
made = 0
# few, since compiling takes longer than reading filler
WIDTHS = (1, 2, 4, 8, 16)
# of each model, the hooks that its graphs were made with, and these by shape; no graph holds on to its model
_COMPILED: weakref.WeakKeyDictionary[
    PreTrainedModel, tuple[tuple[int, ...], dict[tuple[int, ...], Callable[..., torch.Tensor]]]
] = weakref.WeakKeyDictionary()


class CompiledRows(RowRunner):
    """A [`RowRunner`] with compiled forwards over blocks of up to 16 tokens; wider ones are rare, and run as ever.

    Layers with a window keep all slots: a ring's places would depend on the text's length.

    Args:
        model (`PreTrainedModel`): a model that [`compiling.require`] has let pass; it is not changed.
        position_limit (`int`, *optional*): see [`RowRunner`].
    """

    def __init__(self, model: PreTrainedModel, position_limit: int | None = None) -> None:
        super().__init__(model, position_limit, keeps_all=True)
        self.storage = FixedStorage()
        self._compiled = compiled_for(model)
        windows = [layer.window for layer in self.cache.layers]
        window = next((window for window in windows if window is not None), None)
        # as a ready mask for each kind of layer, or one for all of them
        kinds = [(kind, window if kind == "sliding_attention" else None) for kind in self._layer_types]
        self._kinds = tuple(kinds) if len(kinds) > 1 else ((None, windows[0]),)
        # shifts, padding and token types in the storage's shape, and what they were made from
        self._filled: tuple[tuple[Any, ...], tuple[Any, ...]] = ((), ())

    def forward(
        self,
        tokens: torch.Tensor,
        starts: Sequence[int],
        counts: Sequence[int] | None = None,
        right: bool = False,
        keep: int | None = None,
    ) -> Any:
        """See [`RowRunner.forward`]. Outputs are logits alone."""
        rows, width = tokens.shape
        wide = next((wide for wide in WIDTHS if wide >= width), None)
        if wide is None:
            return super().forward(tokens, starts, counts, right, keep)
        keep = width if keep is None else keep
        counts = [width] * rows if counts is None else list(counts)
        storage = self.storage
        storage.hold(self.cache, max(starts) + wide)
        filler = storage.rows - rows
        # the columns by which each row's block is turned; a block of one token cannot be
        turns = counts if right and wide > 1 else [0] * rows
        places = [[*starts, *[0] * filler], [*counts, *[1] * filler], [*turns, *[0] * filler]]
        if (wide, filler) != (width, 0):
            more = (wide - width, 0) if right else (0, wide - width)
            tokens = torch.nn.functional.pad(tokens, (*more, 0, filler))
        kept = 1 if keep == 1 and (right or wide == 1) else wide
        shape = (storage.rows, storage.slots, wide, kept)
        self.forwards += 1
        if shape not in self._compiled:
            self._compiled[shape] = _compile(self.model)
        logits = self._compiled[shape](
            self.model,
            tokens.to(self.device),
            torch.tensor(places, device=self.device),
            *self._fill(),
            storage.keys,
            storage.values,
            storage.tokens[0],
            self._kinds,
            self._additive_masks,
            self.position_limit,
            kept if self._keeps_logits else 0,
        )
        if logits.shape[1] != keep:
            end = logits.shape[1] if right else width
            logits = logits[:, end - keep : end]
        # plainer than outputs of Transformers, whose making takes as long as a small kernel
        return SimpleNamespace(logits=logits[:rows])

    def _fill(self) -> tuple[Any, ...]:
        """Position shifts, visible slots and token types of all rows of the storage; made anew when rows change."""
        rows, slots = self.storage.rows, self.storage.slots
        sources = (self._position_shift, self._valid, self._per_token, rows, slots)
        if len(self._filled[0]) != len(sources) or any(
            a is not b for a, b in zip(self._filled[0], sources, strict=True)
        ):
            shift = self._position_shift
            if shift is None:
                shift = torch.zeros(rows, dtype=torch.long, device=self.device)
            else:
                shift = torch.cat([shift, shift.new_zeros(rows - len(shift), *shift.shape[1:])])
            valid = torch.ones(rows, slots, dtype=torch.bool, device=self.device)
            if self._valid is not None:
                valid[: len(self._valid), : self._valid.shape[1]] = self._valid
            types = {
                name: torch.cat([part, part.new_zeros(rows - len(part), 1)]) for name, part in self._per_token.items()
            }
            self._filled = (sources, (shift, valid, types))
        return self._filled[1]


def compiled_for(model: PreTrainedModel) -> dict[tuple[int, ...], Callable[..., torch.Tensor]]:
    """The compiled forwards of a model by shape, kept as long as the model; torch itself sees when it changes."""
    hooks = hooks_of(model)
    if model not in _COMPILED or _COMPILED[model][0] != hooks:
        # but for hooks, on which it does not look
        _COMPILED[model] = hooks, {}
    return _COMPILED[model][1]


def _compile(model: PreTrainedModel) -> Callable[..., torch.Tensor]:
    """[`_read`], to be compiled at its first call."""
    global made
    made += 1
    # torch counts variants by code object, and gives up after eight: every shape gets its own
    read = types.FunctionType(_read.__code__.replace(), _read.__globals__)
    on_cpu = BACKEND == "inductor" and compat.model_device(model, torch.device("cpu")).type == "cpu"
    # between small kernels, Python would take as long as they do
    options: dict[str, Any] | None = {"cpp_wrapper": True} if on_cpu else None
    return torch.compile(read, fullgraph=True, dynamic=False, backend=BACKEND, options=options)


def _read(
    model: PreTrainedModel,
    tokens: torch.Tensor,
    places: torch.Tensor,
    shift: torch.Tensor,
    valid: torch.Tensor,
    types: dict[str, torch.Tensor],
    keys: list[Any],
    values: list[Any],
    written: torch.Tensor,
    kinds: tuple[tuple[str | None, int | None], ...],
    additive: bool,
    position_limit: int | None,
    keep: int,
) -> torch.Tensor:
    """What is compiled: one forward over a block; logits `(R, keep, V)`, or `(R, W, V)` where `keep` is 0.

    Args:
        model (`PreTrainedModel`): the model.
        tokens (`torch.LongTensor` of shape `(R, W)`): the block.
        places (`torch.LongTensor` of shape `(3, R)`): slot of the first real token, real tokens, and by how many
            columns the block is turned.
        shift (`torch.LongTensor` of shape `(R,)` or `(R, A)`): position less slot, on each axis.
        valid (`torch.BoolTensor` of shape `(R, C)`): slots that are no padding.
        types (`dict[str, torch.LongTensor]` of shape `(R, 1)`): token types of what is written.
        keys (`list`): storage of each layer, `(R, heads, C, dim)`; written to.
        values (`list`): likewise.
        written (`torch.LongTensor` of shape `(R, C)`): the token each slot was made from; written to.
        kinds (`tuple`): name and window of each kind of layer; no name if there is one mask for all.
        additive (`bool`): whether masks are added to scores.
        position_limit (`int`, *optional*): positions from here on are read as the last one.
        keep (`int`): last places to return logits for.
    """
    wide = tokens.shape[1]
    starts, counts, turns = places[0, :, None], places[1, :, None], places[2, :, None]
    slots = starts + (torch.arange(wide, device=tokens.device) + turns) % wide
    # filler must not run past a learned position table
    positions = torch.minimum(slots, starts + counts - 1) + shift.movedim(0, -1)[..., None]
    if position_limit is not None:
        positions = positions.clamp_max(position_limit - 1)
    masks = {}
    for kind, window in kinds:
        visible = visibility(slots, torch.arange(written.shape[1], device=tokens.device), window) & valid[:, None]
        masks[kind] = visible[:, None]
        if additive:
            zeros = torch.zeros_like(masks[kind], dtype=model.dtype)
            masks[kind] = zeros.masked_fill(~masks[kind], torch.finfo(model.dtype).min)
    arguments: dict[str, Any] = {
        "input_ids": tokens,
        "attention_mask": masks[None] if None in masks else masks,
        "position_ids": positions,
        compat.CACHE_ARGUMENT: _BlockCache(keys, values, slots),
        "use_cache": True,
        "return_dict": True,
        **{name: part.expand(tokens.shape) for name, part in types.items()},
    }
    if keep:
        arguments["logits_to_keep"] = keep
    logits = model(**arguments).logits
    written.scatter_(1, slots, tokens)
    return logits


class _BlockCache(Cache):
    """Writes a block to its slots and reads all of the storage; lives inside one forward."""

    def __init__(self, keys: list[Any], values: list[Any], slots: torch.Tensor) -> None:
        self.keys, self.values, self.slots = keys, values, slots
        self.layers: list[Any] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes `(R, heads, W, dim)` states of a layer; returns all of its places."""
        rows = torch.arange(key_states.shape[0], device=key_states.device)[:, None]
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        keys[rows, :, self.slots] = key_states.transpose(1, 2)
        values[rows, :, self.slots] = value_states.transpose(1, 2)
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions are given, and never derived from this."""
        return 0
