"""Runs a model over rows of different length: prefill, then blocks of tokens at any slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache, GenerationConfig, PreTrainedModel

from ..state.cache import RowCache, RowStates, only_rows
from ..state.layout import visibility
from . import chunks, compat, heads, inputs


class RowRunner:
    """A causal language model, its [`RowCache`], and the positions of its rows.

    Args:
        model (`PreTrainedModel`): an admitted model.
        position_limit (`int`, *optional*): positions from here on are read as the last one. For rows that are carried
            along although nothing is wanted of them any more.
        keeps_all (`bool`): whether layers with a window keep what nobody sees any more.

    Attributes:
        cache (`RowCache`): `cache.lengths[b]` slots of row `b` are valid.
        forwards (`int`): forward passes so far.
        may_drop_masks (`bool`): whether the last token of rows without padding is read without a mask.
    """

    def __init__(self, model: PreTrainedModel, position_limit: int | None = None, keeps_all: bool = False) -> None:
        self.model = model
        self.position_limit = position_limit
        self.device = compat.model_device(model, torch.device("cpu"))
        self.cache = RowCache(compat.layer_windows(model), keeps_all)
        self.forwards = 0
        self._layer_types = sorted(set(getattr(compat.text_config(model), "layer_types", None) or ()))
        self._keeps_logits = "logits_to_keep" in compat.forward_parameters(model)
        self._additive_masks = compat.text_config(model)._attn_implementation == "eager"
        self._windows = {layer.window for layer in self.cache.layers}
        # where a model also reads pictures, or prompts in both directions, no mask may mean another one to it
        reads_text = compat.text_config(model) is model.config and not getattr(
            model.config, "use_bidirectional_attention", None
        )
        one_kind = self._windows == {None} and len(self._layer_types) < 2
        self.may_drop_masks = reads_text and one_kind and not self._additive_masks
        # slots in order, made once for all masks
        self._slots = torch.arange(0, device=self.device)
        self._per_token: dict[str, torch.Tensor] = {}
        self._flags: dict[str, Any] = {}

    def prefill(
        self,
        input_ids: torch.Tensor,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
    ) -> Any:
        """Reads the prompts exactly as plain `generate` does, then takes the states over.

        Args:
            input_ids (`torch.LongTensor` of shape `(B, P)`): prompts.
            generation_config (`GenerationConfig`): for chunked prefill.
            model_kwargs (`dict`): forward arguments as `generate` prepared them; their cache is emptied into this
                runner's. Positions and token types go on as in plain `generate`, and output flags hold for later
                forwards too; images and audio are read here alone.

        Returns:
            `ModelOutput`: the model's outputs; `logits[:, -1]` score the first new token.
        """
        mask = model_kwargs.get("attention_mask")
        if model_kwargs.get(compat.CACHE_ARGUMENT) is None:
            model_kwargs[compat.CACHE_ARGUMENT] = DynamicCache(config=compat.text_config(self.model))
        source = model_kwargs[compat.CACHE_ARGUMENT]
        step = inputs.later_step(self.model, input_ids, model_kwargs)
        count = chunks.forwards(input_ids, source, generation_config)
        outputs = self.model._prefill(input_ids, generation_config, model_kwargs)
        self.forwards += count
        self._take_over(source, input_ids)
        columns = self.cache.lengths[0]
        self.device = compat.model_device(self.model, input_ids.device)
        self._valid = None
        if mask is not None and not bool((mask != 0).all()):
            self._valid = (mask[:, :columns] != 0).to(self.device)
        # `(B,)`, or `(B, A)` where a token has a position on each of several axes
        positions = step.get("position_ids", torch.full((1, 1), columns, device=self.device))
        first = positions[..., 0].movedim(-1, 0)
        shift = first.expand(len(input_ids), *first.shape[1:]) - columns
        # slots are positions where nothing is padded
        self._position_shift = shift.to(self.device, torch.long) if shift.dim() > 1 or bool(shift.any()) else None
        self._per_token = {name: step[name][:, -1:].to(self.device) for name in inputs.PER_TOKEN if name in step}
        self._flags = {name: model_kwargs[name] for name in inputs.OUTPUT_FLAGS if model_kwargs.get(name)}
        self._batch = (self._position_shift, self._valid, self._per_token)
        return outputs

    def _take_over(self, source: DynamicCache, input_ids: torch.Tensor) -> None:
        """Moves the states of Transformers' cache into row storage, layer by layer so that only one is held twice."""
        columns = source.get_seq_length()
        for layer, theirs in zip(self.cache.layers, source.layers, strict=True):
            if theirs.is_initialized:
                layer.load(theirs.keys, theirs.values, columns)
                theirs.keys = theirs.values = None
        self.cache.begin(input_ids.to(compat.model_device(self.model, input_ids.device)), columns)

    def forward(
        self,
        tokens: torch.Tensor,
        starts: Sequence[int],
        counts: Sequence[int] | None = None,
        right: bool = False,
        keep: int | None = None,
    ) -> Any:
        """One forward over a block of tokens per row. Valid lengths do not change: the caller says what counts.

        Ragged blocks carry filler tokens, which are treated like further tokens after the row's end: they write slots
        that later tokens overwrite, and no real query sees them.

        Args:
            tokens (`torch.LongTensor` of shape `(B, W)`): tokens; filler where a row has fewer than `W`.
            starts (`Sequence[int]`): slot of each row's first real token.
            counts (`Sequence[int]`, *optional*): real tokens of each row, `W` by default.
            right (`bool`): real tokens stand at the end of the block, so that the last logits are always wanted ones.
            keep (`int`, *optional*): last positions to return logits for, `W` by default.

        Returns:
            `ModelOutput`: outputs with `logits` of shape `(B, keep, V)`.
        """
        width = tokens.shape[1]
        if min(starts) == max(starts) and (counts is None or min(counts) >= width):
            written = positions = self.cache.aim_alike(starts[0], self._slots_below(starts[0] + width))
        else:
            written, positions = self._aim_apart(width, starts, counts or [width] * len(starts), right)
        if self._position_shift is not None:
            # axes first, as models with several take them
            positions = positions + self._position_shift.movedim(0, -1)[..., None]
        if self.position_limit is not None:
            positions = positions.clamp_max(self.position_limit - 1)
        keep = width if keep is None else keep
        tokens = tokens.to(self.device)
        arguments = {
            "input_ids": tokens,
            "attention_mask": self._masks(written),
            "position_ids": positions,
            compat.CACHE_ARGUMENT: self.cache,
            "use_cache": True,
            "return_dict": True,
            **self._flags,
        }
        arguments |= {name: types.expand(tokens.shape) for name, types in self._per_token.items()}
        if self._keeps_logits:
            arguments["logits_to_keep"] = heads.last_positions(self.model, keep, width)
        self.forwards += 1
        outputs = self.model(**arguments)
        self.cache.note(tokens)
        if outputs.logits.shape[1] != keep:
            outputs.logits = outputs.logits[:, -keep:]
        return outputs

    def _aim_apart(
        self, width: int, starts: Sequence[int], counts: Sequence[int], right: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Slots and places `(B, W)` of blocks that stand at different slots, or are not all of one length."""
        slots, places = [], []
        for start, count in zip(starts, counts, strict=True):
            row = list(range(start, start + width))
            row = row[count:] + row[:count] if right else row
            slots.append(row)
            # filler must not run past a learned position table
            places.append([min(slot, start + count - 1) for slot in row])
        written = self.cache.aim(slots, self.device)
        return written, written if places == slots else torch.tensor(places, device=self.device)

    def _slots_below(self, end: int) -> torch.Tensor:
        if len(self._slots) < end or self._slots.device != self.device:
            self._slots = torch.arange(2 * end, device=self.device)
        return self._slots[:end]

    def _masks(self, slots: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor] | None:
        """What each query may see: valid slots up to its own, within the layer's window (contract 0x04C)."""
        if slots.shape[1] == 1 and self.may_drop_masks and self._valid is None and self.cache.plan.slots is None:
            # a last token may see all there is: as a step of plain `generate`, without a mask, which takes less
            return None
        if len(self._layer_types) > 1:
            window = next((w for w in self._windows if w is not None), None)
            return {
                kind: self._mask(slots, window if kind == "sliding_attention" else None) for kind in self._layer_types
            }
        return self._mask(slots, *self._windows)

    def _mask(self, slots: torch.Tensor, window: int | None) -> torch.Tensor:
        ring = None if window is None else self.cache.rings.get(window)
        if ring is not None and self.cache.plan.end > ring.size:
            held = ring.held[:, None]
            visible = visibility(slots, held, window) & (held >= 0)
            if self._valid is not None:
                prompt = self._valid.shape[1]
                visible &= (held >= prompt) | self._valid[:, None].expand(-1, 1, -1).gather(
                    2, held.clamp(0, prompt - 1)
                )
        else:
            visible = visibility(slots, self._slots_below(self.cache.plan.end), window)
            if self._valid is not None:
                prompt = min(self._valid.shape[1], visible.shape[-1])
                visible[..., :prompt] &= self._valid[:, None, :prompt]
        visible = visible[:, None]
        if not self._additive_masks:
            return visible
        dtype = self.model.dtype
        return torch.zeros_like(visible, dtype=dtype).masked_fill_(~visible, torch.finfo(dtype).min)

    def keep_rows(self, indices: Sequence[int]) -> None:
        """Drops all rows but the given ones. Interrupted, it can be called again in the same way."""
        before = len(self.cache.lengths)
        if self._position_shift is not None:
            self._position_shift = only_rows(self._position_shift, indices, before)
        self._valid = None if self._valid is None else only_rows(self._valid, indices, before)
        self._per_token = {name: only_rows(types, indices, before) for name, types in self._per_token.items()}
        self.cache.keep_rows(indices)

    def regroup(self, rows: Sequence[RowStates]) -> None:
        """Becomes the whole batch of the prefill again.

        Args:
            rows (`Sequence`): states of every row in batch order, as `cache.take_row` returned them.
        """
        self.cache.put_rows(rows)
        self._position_shift, self._valid, self._per_token = self._batch
