"""Logits processors over the positions of a block, each with its own prefix (contract 0x06J).

A serial decode calls the list once per position with the prefix so far. Here the list is walked processor by
processor: one without history takes all positions in one call, one with history takes the rows that stand at the same
column in one call. The result at each position is what the serial call would have given.
"""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.generation import logits_process as hf

from ..errors import BatchCoupledProcessor, StatefulProcessor
from .manifest import settings_of
from .purity import digest_or_unreadable, is_stateless, treats_rows_alone
from .rows import prefixes


_WITHOUT_HISTORY = {
    hf.TemperatureLogitsWarper,
    hf.TopKLogitsWarper,
    hf.TopPLogitsWarper,
    hf.TopHLogitsWarper,
    hf.MinPLogitsWarper,
    hf.TypicalLogitsWarper,
    hf.EpsilonLogitsWarper,
    hf.EtaLogitsWarper,
    hf.InfNanRemoveLogitsProcessor,
    hf.LogitNormalization,
    hf.SuppressTokensLogitsProcessor,
}
_ROW_BY_ROW = {
    hf.MinLengthLogitsProcessor,
    hf.MinNewTokensLengthLogitsProcessor,
    hf.NoRepeatNGramLogitsProcessor,
    hf.SequenceBiasLogitsProcessor,
    hf.NoBadWordsLogitsProcessor,
    hf.ForcedBOSTokenLogitsProcessor,
    hf.ForcedEOSTokenLogitsProcessor,
    hf.ExponentialDecayLengthPenalty,
    hf.SuppressTokensAtBeginLogitsProcessor,
    hf.WatermarkLogitsProcessor,
    hf.WhisperTimeStampLogitsProcessor,
    # it looks at the first token alone, which all rows reach in one call, and changes no score
    hf.WhisperNoSpeechDetection,
}
_STATEFUL = {
    hf.UnbatchedClassifierFreeGuidanceLogitsProcessor: "guidance_scale",
    hf.SynthIDTextWatermarkLogitsProcessor: "watermarking_config",
}


# SHA-256 of no bytes
_NO_MEMORY = hashlib.sha256().hexdigest()


class _Stage(ABC):
    """One processor of the list, applied to many positions."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    @abstractmethod
    def apply(
        self, scores: torch.Tensor, rows: Sequence[int], lengths: Sequence[int], ids: torch.Tensor
    ) -> torch.Tensor:
        """See [`ProcessorPipeline.process`]."""


class _WithoutHistory(_Stage):
    def apply(
        self, scores: torch.Tensor, rows: Sequence[int], lengths: Sequence[int], ids: torch.Tensor
    ) -> torch.Tensor:
        return self.processor(ids[:1, :0].expand(scores.shape[0], 0), scores)


class _RowByRow(_Stage):
    """A processor that treats every row alike: rows at the same column share a call."""

    def for_rows(self, rows: Sequence[int]) -> Callable[..., torch.Tensor]:
        return self.processor

    def apply(
        self, scores: torch.Tensor, rows: Sequence[int], lengths: Sequence[int], ids: torch.Tensor
    ) -> torch.Tensor:
        result = torch.empty_like(scores)
        for length in sorted(set(lengths)):
            here = [i for i, other in enumerate(lengths) if other == length]
            owners = [rows[i] for i in here]
            result[here] = self.for_rows(owners)(prefixes(ids, owners, length), scores[here])
        return result


class _RepetitionPenalty(_RowByRow):
    def for_rows(self, rows: Sequence[int]) -> Callable[..., torch.Tensor]:
        ignored = self.processor.prompt_ignore_length
        if not isinstance(ignored, torch.Tensor):
            return self.processor
        return hf.RepetitionPenaltyLogitsProcessor(self.processor.penalty, prompt_ignore_length=ignored[list(rows)])


class _EncoderRepetitionPenalty(_RowByRow):
    def for_rows(self, rows: Sequence[int]) -> Callable[..., torch.Tensor]:
        ours = copy.copy(self.processor)
        ours.encoder_input_ids = self.processor.encoder_input_ids[[row // self.copies for row in rows]]
        return ours

    def __init__(self, processor: Any, batch: int) -> None:
        super().__init__(processor)
        self.copies = batch // processor.encoder_input_ids.shape[0]


class _EncoderNoRepeatNGram(_RowByRow):
    def __init__(self, processor: Any, batch: int) -> None:
        super().__init__(processor)
        self.copies = batch // processor.batch_size

    def for_rows(self, rows: Sequence[int]) -> Callable[..., torch.Tensor]:
        ours = copy.copy(self.processor)
        ours.generated_ngrams = [self.processor.generated_ngrams[row // self.copies] for row in rows]
        ours.batch_size = len(rows)
        return ours


class _PrefixConstrained(_RowByRow):
    """Gives the user's function the batch index plain `generate` would give it."""

    def for_rows(self, rows: Sequence[int]) -> Callable[..., torch.Tensor]:
        allowed, copies = self.processor._prefix_allowed_tokens_fn, self.processor._num_beams
        return hf.PrefixConstrainedLogitsProcessor(lambda i, prefix: allowed(rows[i] // copies, prefix), 1)


class _WholeBatch(_Stage):
    """A foreign processor may index rows by their place in the batch, so it always sees the whole batch.

    Rows that are not asked for at a column show what they hold there (older tokens, or padding as after an end) with
    zero scores, and what it says about them is thrown away.
    """

    def apply(
        self, scores: torch.Tensor, rows: Sequence[int], lengths: Sequence[int], ids: torch.Tensor
    ) -> torch.Tensor:
        result = torch.empty_like(scores)
        for length in sorted(set(lengths)):
            here = [i for i, other in enumerate(lengths) if other == length]
            owners = [rows[i] for i in here]
            batch = scores.new_zeros((ids.shape[0], scores.shape[1]))
            batch[owners] = scores[here]
            result[here] = self.processor(ids[:, :length], batch)[owners].to(result.dtype)
        return result


class ProcessorPipeline:
    """A list of stateless logits processors, ready for blocks of positions.

    Args:
        processors (`Sequence`): the list as `generate` prepared it; it is not changed.
        input_ids (`torch.LongTensor` of shape `(B, P)`): prompts, to probe processors of unknown class on a copy.
        vocabulary (`int`): columns of the scores.

    Raises:
        StatefulProcessor: a processor remembers its calls, or it cannot be shown that it does not.
        BatchCoupledProcessor: a processor's answer about a row depends on other rows of the batch.
    """

    def __init__(self, processors: Sequence[Any], input_ids: torch.Tensor, vocabulary: int) -> None:
        self.processors = list(processors)
        self._prompt, self._vocabulary = input_ids, vocabulary
        self._stages = [_stage(processor, input_ids, vocabulary) for processor in processors]
        self._described: list[dict[str, Any]] | None = None

    def describe(self) -> list[dict[str, Any]]:
        """Of each processor, in order: class, plain settings, and a digest of all it holds."""
        if self._described is None:
            self._described = [_described(processor) for processor in self.processors]
        return self._described

    @property
    def state_hash(self) -> str:
        """Hash of what the processors remember: nothing, as long as only stateless ones are admitted."""
        return _NO_MEMORY

    @property
    def asks_caller(self) -> bool:
        """Whether code of the caller's is asked, which may fail on prefixes that plain `generate` never shows it."""
        return any(isinstance(stage, (_WholeBatch, _PrefixConstrained)) for stage in self._stages)

    def with_list(self, processors: Sequence[Any]) -> ProcessorPipeline:
        """A pipeline of another list; processors that this one holds too are not probed again."""
        other = copy.copy(self)
        known = {id(stage.processor): stage for stage in self._stages}
        other.processors, other._described = list(processors), None
        other._stages = [known.get(id(p)) or _stage(p, self._prompt, self._vocabulary) for p in processors]
        return other

    def process(
        self, scores: torch.Tensor, rows: Sequence[int], lengths: Sequence[int], ids: torch.Tensor
    ) -> torch.Tensor:
        """Scores of `N` positions, each processed with its own prefix.

        Args:
            scores (`torch.Tensor` of shape `(N, V)`): logits, float32 or better.
            rows (`Sequence[int]`): row of each position, by its place in the call's batch.
            lengths (`Sequence[int]`): prefix length of each position, in columns.
            ids (`torch.LongTensor` of shape `(B, columns)`): tokens of the batch, drafts included.

        Returns:
            `torch.Tensor` of shape `(N, V)`: processed scores.
        """
        for stage in self._stages:
            scores = stage.apply(scores, rows, lengths, ids)
        return scores


def _described(processor: Any) -> dict[str, Any]:
    settings = settings_of(processor)
    return {"class": settings.pop("kind"), "settings": settings, "digest": digest_or_unreadable(processor)}


def _stage(processor: Any, input_ids: torch.Tensor, vocabulary: int) -> _Stage:
    kind, batch = type(processor), input_ids.shape[0]
    if kind in _WITHOUT_HISTORY:
        return _WithoutHistory(processor)
    if kind in _ROW_BY_ROW:
        return _RowByRow(processor)
    if kind is hf.RepetitionPenaltyLogitsProcessor:
        return _RepetitionPenalty(processor)
    if kind is hf.EncoderRepetitionPenaltyLogitsProcessor:
        return _EncoderRepetitionPenalty(processor, batch)
    if kind is hf.EncoderNoRepeatNGramLogitsProcessor:
        return _EncoderNoRepeatNGram(processor, batch)
    if kind in _STATEFUL:
        raise StatefulProcessor(
            f"{kind.__name__} keeps a memory of its calls and cannot be used with an assistant yet: leave out "
            f"`{_STATEFUL[kind]}`, or drop the assistant for this call."
        )
    asked = processor
    if kind is hf.PrefixConstrainedLogitsProcessor:
        asked = processor._prefix_allowed_tokens_fn
        copies = processor._num_beams

    def call(subject: Any, ids: torch.Tensor, row: int | None) -> torch.Tensor:
        scores = torch.linspace(-1, 1, vocabulary, device=ids.device).repeat(ids.shape[0], 1)
        if row is not None:
            others = torch.arange(len(ids), device=ids.device) != row
            scores[others] = scores[others].flip(-1)
        if kind is hf.PrefixConstrainedLogitsProcessor:
            subject = hf.PrefixConstrainedLogitsProcessor(subject, copies)
        return subject(ids, scores)

    if not is_stateless(asked, call, input_ids):
        name = getattr(asked, "__qualname__", kind.__name__)
        raise StatefulProcessor(
            f"The logits processor {name} remembers its calls, or cannot be copied to find out. Scoring drafts would "
            "call it for tokens that are rejected later: make its answer a function of `input_ids` alone, or drop the "
            "assistant."
        )
    if kind is hf.PrefixConstrainedLogitsProcessor:
        return _PrefixConstrained(processor)
    if batch > 1 and not treats_rows_alone(asked, call, input_ids):
        raise BatchCoupledProcessor(
            f"The logits processor {kind.__name__} lets the rows of a batch depend on each other, or fails on what "
            "other rows hold, and rows reach their tokens in different rounds: generate the rows one by one, or drop "
            "the assistant."
        )
    return _WholeBatch(processor)
