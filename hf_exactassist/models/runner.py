"""Runs a model over rows of different length: prefill, then blocks of tokens at any slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache, GenerationConfig, PreTrainedModel

from ..state.cache import RowCache, RowStates, only_rows
from ..state.layout import visibility
from . import compat


OUTPUT_FLAGS = ("output_attentions", "output_hidden_states")


class RowRunner:
    """A causal language model, its [`RowCache`], and the positions of its rows.

    Args:
        model (`PreTrainedModel`): an admitted model.
        position_limit (`int`, *optional*): positions from here on are read as the last one. For rows that are carried
            along although nothing is wanted of them any more.

    Attributes:
        cache (`RowCache`): `cache.lengths[b]` slots of row `b` are valid.
        forwards (`int`): forward passes so far.
    """

    def __init__(self, model: PreTrainedModel, position_limit: int | None = None) -> None:
        self.model = model
        self.position_limit = position_limit
        self.device = compat.model_device(model, torch.device("cpu"))
        self.cache = RowCache(compat.layer_windows(model))
        self.forwards = 0
        self._layer_types = sorted(set(getattr(compat.text_config(model), "layer_types", None) or ()))
        self._keeps_logits = "logits_to_keep" in compat.forward_parameters(model)
        self._additive_masks = compat.text_config(model)._attn_implementation == "eager"
        self._token_types: torch.Tensor | None = None
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
                runner's. Token types (the last one is repeated, as in plain `generate`) and output flags hold for
                later forwards too.

        Returns:
            `ModelOutput`: the model's outputs; `logits[:, -1]` score the first new token.
        """
        mask = model_kwargs.get("attention_mask")
        position_ids = model_kwargs.get("position_ids")
        if model_kwargs.get(compat.CACHE_ARGUMENT) is None:
            model_kwargs[compat.CACHE_ARGUMENT] = DynamicCache(config=compat.text_config(self.model))
        source = model_kwargs[compat.CACHE_ARGUMENT]
        outputs = self.model._prefill(input_ids, generation_config, model_kwargs)
        self.forwards += 1
        self._take_over(source, input_ids)
        columns = self.cache.lengths[0]
        self.device = compat.model_device(self.model, input_ids.device)
        self._valid = None
        if mask is not None and not bool((mask != 0).all()):
            self._valid = (mask[:, :columns] != 0).to(self.device)
        last = position_ids[:, -1].expand(input_ids.shape[0]) if position_ids is not None else None
        shift = torch.zeros(input_ids.shape[0], device=self.device) if last is None else last - (columns - 1)
        self._position_shift = shift.to(self.device, torch.long)
        token_types = model_kwargs.get("token_type_ids")
        self._token_types = None if token_types is None else token_types[:, -1:].to(self.device)
        self._flags = {name: model_kwargs[name] for name in OUTPUT_FLAGS if model_kwargs.get(name)}
        self._batch = (self._position_shift, self._valid, self._token_types)
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
        counts = [width] * len(starts) if counts is None else counts
        slots, places = [], []
        for start, count in zip(starts, counts, strict=True):
            row = list(range(start, start + width))
            row = row[count:] + row[:count] if right else row
            slots.append(row)
            # filler must not run past a learned position table
            places.append([min(slot, start + count - 1) for slot in row])
        written = self.cache.aim(slots, self.device)
        positions = torch.tensor(places, device=self.device) + self._position_shift[:, None]
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
        if self._token_types is not None:
            arguments["token_type_ids"] = self._token_types.expand(tokens.shape)
        if self._keeps_logits:
            arguments["logits_to_keep"] = keep
        self.forwards += 1
        outputs = self.model(**arguments)
        self.cache.note(tokens)
        if outputs.logits.shape[1] != keep:
            outputs.logits = outputs.logits[:, -keep:]
        return outputs

    def _masks(self, slots: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        """What each query may see: valid slots up to its own, within the layer's window (contract 0x04C)."""
        windows = {layer.window for layer in self.cache.layers}
        if len(self._layer_types) > 1:
            window = next((w for w in windows if w is not None), None)
            return {
                kind: self._mask(slots, window if kind == "sliding_attention" else None) for kind in self._layer_types
            }
        return self._mask(slots, windows.pop())

    def _mask(self, slots: torch.Tensor, window: int | None) -> torch.Tensor:
        visible = visibility(slots, torch.arange(self.cache.plan.end, device=slots.device), window)
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
        tables = (self._position_shift, self._valid, self._token_types)
        self._position_shift, self._valid, self._token_types = (
            None if table is None else only_rows(table, indices, before) for table in tables
        )
        self.cache.keep_rows(indices)

    def regroup(self, rows: Sequence[RowStates]) -> None:
        """Becomes the whole batch of the prefill again.

        Args:
            rows (`Sequence`): states of every row in batch order, as `cache.take_row` returned them.
        """
        self.cache.put_rows(rows)
        self._position_shift, self._valid, self._token_types = self._batch
