"""What `generate` returns: Transformers' output classes with one entry per published token, plus the counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from transformers import GenerationConfig
from transformers.generation import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from .models import compat
from .state.rows import Rows
from .telemetry import AssistStats


@dataclass
class AssistedDecoderOnlyOutput(GenerateDecoderOnlyOutput):
    """[`~transformers.generation.GenerateDecoderOnlyOutput`] plus the counters of the call.

    Rows that finished before others have no tokens in the later steps: their entries there are zeros (plain `generate`
    holds values for padding tokens instead).

    Args:
        assist_stats (`AssistStats`): rounds, drafts and forwards.
    """

    assist_stats: AssistStats | None = None


@dataclass
class AssistedEncoderDecoderOutput(GenerateEncoderDecoderOutput):
    """[`~transformers.generation.GenerateEncoderDecoderOutput`] plus the counters of the call, as for decoders alone.

    `assist_stats` is an attribute and no key: Whisper's `generate` takes every key apart by rows.
    """

    assist_stats: ClassVar[AssistStats | None] = None


AssistedOutput = AssistedDecoderOnlyOutput | AssistedEncoderDecoderOutput


class StepRecorder:
    """Collects per-token outputs of rows that arrive at their tokens in different rounds.

    Args:
        generation_config (`GenerationConfig`): says what is wanted; nothing is kept otherwise.
        rows (`Rows`): the rows of the call.
        encoder_outputs (`ModelOutput`, *optional*): what the target's encoder said, if it has one.
    """

    def __init__(self, generation_config: GenerationConfig, rows: Rows, encoder_outputs: Any = None) -> None:
        self.encoder_outputs = encoder_outputs
        wanted = generation_config.return_dict_in_generate
        self.rows = rows
        self.scores: list[torch.Tensor] | None = [] if wanted and generation_config.output_scores else None
        self.logits: list[torch.Tensor] | None = [] if wanted and generation_config.output_logits else None
        self.layers: dict[str, list[Any]] = {}
        if wanted and generation_config.output_hidden_states:
            self.layers["hidden_states"] = []
        if wanted and generation_config.output_attentions:
            self.layers["attentions"] = []
            if encoder_outputs is not None:
                self.layers["cross_attentions"] = []

    def start(self, slots: int, windows: Sequence[int | None]) -> None:
        """Learns what prefill found.

        Args:
            slots (`int`): cache slots of the prompt.
            windows (`Sequence[int | None]`): window of each layer of the cache; attention beyond it is not returned.
        """
        self.slots_after_prefill, self.windows = slots, windows

    @property
    def records_scores(self) -> bool:
        """Whether anybody wants scores or logits."""
        return self.scores is not None or self.logits is not None

    def record_scores(
        self, logits: torch.Tensor, scores: torch.Tensor, active: Sequence[int], places: Sequence[int]
    ) -> None:
        """Adds places of a block before they are published. What is not is overwritten or cut off later.

        Args:
            logits (`torch.Tensor` of shape `(A, W, V)`): raw logits of the active rows' block.
            scores (`torch.Tensor` of shape `(A, W, V)`): processed ones.
            active (`Sequence[int]`): for each place to add, its row among the active ones.
            places (`Sequence[int]`): and its place in the block.
        """
        starts, rows = self._steps([0] * len(logits)), self.rows.active
        for table, block in ((self.scores, scores), (self.logits, logits)):
            if table is None:
                continue
            for i, place in zip(active, places, strict=True):
                while len(table) <= starts[i] + place:
                    table.append(block.new_zeros((self.rows.batch, block.shape[-1])))
                table[starts[i] + place][rows[i]] = block[i, place]

    def record_layers(self, outputs: Any, counts: Sequence[int]) -> None:
        """Adds hidden states and attentions of a round before it is published.

        Args:
            outputs (`ModelOutput`): the forward's outputs.
            counts (`Sequence[int]`): tokens each active row may publish in this round.
        """
        first = all(length == self.rows.prompt_length for length in self.rows.lengths)
        for name, table in self.layers.items():
            layers: Any = getattr(outputs, name, None)
            if first:
                # the prompt's own entry, as in plain `generate`; a round made again finds the one it left
                table[:] = [layers]
            elif not layers or all(layer is None for layer in layers):
                # `sdpa` returns no attention at all
                table.extend([layers] * (max(self._steps(counts)) - len(table)))
            else:
                self._add_layers(table, name, layers, counts)

    def _steps(self, counts: Sequence[int]) -> list[int]:
        """Number of new tokens each active row would have after this round."""
        return [
            length - self.rows.prompt_length + count
            for length, count in zip(self.rows.active_lengths(), counts, strict=True)
        ]

    def _add_layers(
        self, table: list[Any], name: str, layers: Sequence[torch.Tensor | None], counts: Sequence[int]
    ) -> None:
        for i, (row, end) in enumerate(zip(self.rows.active, self._steps(counts), strict=True)):
            start = end - counts[i]
            for step in range(start, end):
                at = step - start
                if name == "attentions" and all(layer is None or layer.dim() == 4 for layer in layers):
                    keys = self.slots_after_prefill + step
                    low = [0 if window is None else max(keys - window, 0) for window in self.windows]
                    low = low if len(low) == len(layers) else [0] * len(layers)
                    parts = [
                        None if layer is None else layer[i, :, at : at + 1, first:keys]
                        for layer, first in zip(layers, low, strict=True)
                    ]
                else:
                    parts = [None if layer is None else layer[i, ..., at : at + 1, :] for layer in layers]
                if len(table) <= step:
                    empty = [None if p is None else p.new_zeros((self.rows.batch, *p.shape)) for p in parts]
                    table.append(tuple(empty))
                for whole, part in zip(table[step], parts, strict=True):
                    if whole is not None:
                        whole[row] = part

    def criteria_scores(self, steps: int) -> tuple[torch.Tensor, ...] | None:
        """The `scores` argument of stopping criteria after `steps` new tokens."""
        return None if self.scores is None else tuple(self.scores[:steps])

    def finish(self, cache: Any, stats: AssistStats) -> AssistedOutput:
        """The output object.

        Args:
            cache (`Cache`, *optional*): the cache to hand over.
            stats (`AssistStats`): the counters.
        """
        sequences = self.rows.sequences()
        steps = sequences.shape[1] - self.rows.prompt_length

        def cut(table: list[Any] | None) -> tuple[Any, ...] | None:
            if table is None:
                return None
            # a round is recorded whole, so what its stop took back still lies there
            for row, length in enumerate(self.rows.lengths):
                for entry in table[length - self.rows.prompt_length : steps]:
                    for part in (entry,) if isinstance(entry, torch.Tensor) else entry:
                        if part is not None:
                            part[row] = 0
            return tuple(table[:steps])

        if self.encoder_outputs is not None:
            output = AssistedEncoderDecoderOutput(
                sequences=sequences,
                scores=cut(self.scores),
                logits=cut(self.logits),
                encoder_attentions=self.encoder_outputs.get("attentions") if "attentions" in self.layers else None,
                encoder_hidden_states=self.encoder_outputs.get("hidden_states")
                if "hidden_states" in self.layers
                else None,
                decoder_attentions=cut(self.layers.get("attentions")),
                cross_attentions=cut(self.layers.get("cross_attentions")),
                decoder_hidden_states=cut(self.layers.get("hidden_states")),
                **{compat.CACHE_FIELD: cache},
            )
            object.__setattr__(output, "assist_stats", stats)
            return output
        return AssistedDecoderOnlyOutput(
            sequences=sequences,
            scores=cut(self.scores),
            logits=cut(self.logits),
            attentions=cut(self.layers.get("attentions")),
            hidden_states=cut(self.layers.get("hidden_states")),
            assist_stats=stats,
            **{compat.CACHE_FIELD: cache},
        )
