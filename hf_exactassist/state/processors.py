"""Logits processors over the positions of a block, each with its own prefix (contract 0x06J).

A serial decode calls the list once per position with the prefix so far. Here the list is walked processor by
processor: one without history takes all positions in one call, one with history takes the rows that stand at the same
column in one call, one with a memory is called as the serial decode would call it: for one row after the other where
each row has a memory of its own, else for the whole batch, whose rows then keep in step.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.generation import logits_process as hf

from ..errors import BatchCoupledProcessor, StatefulProcessor
from .manifest import settings_of
from .purity import can_be_saved, is_declared_stateless, scores_alone
from .reach import digest_or_unreadable
from .row_processors import RowProcessors, by_row
from .rows import prefixes
from .surroundings import undisturbed
from .top_k import top_k
from .transactional import TransactionalLogitsProcessor


_WITHOUT_HISTORY = {
    hf.TemperatureLogitsWarper,
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


class _TopK(_WithoutHistory):
    def apply(
        self, scores: torch.Tensor, rows: Sequence[int], lengths: Sequence[int], ids: torch.Tensor
    ) -> torch.Tensor:
        left = top_k(scores, self.processor.top_k, self.processor.filter_value)
        return super().apply(scores, rows, lengths, ids) if left is None else left


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


class _Remembering(_Stage):
    """A processor with a memory: every call counts, and they come in the order of a serial decode.

    Attributes:
        objects (`list`): what remembers.
        drafts (`bool`): whether a drafter gains from asking copies of them.
        originals (`list`, *optional*): what these objects are copies of.
        sealed (`bool`): whether they may not be called from here.
    """

    objects: list[Any]
    originals: list[Any] | None = None
    drafts = True
    sealed = False

    def over(self, objects: list[Any], sealed: bool = False) -> _Remembering:
        """The same stage over copies of its objects."""
        theirs = copy.copy(self)
        theirs.originals = None if sealed else self.objects
        theirs.objects, theirs.sealed = objects, sealed
        return theirs

    def apply(
        self, scores: torch.Tensor, rows: Sequence[int], lengths: Sequence[int], ids: torch.Tensor
    ) -> torch.Tensor:
        if self.sealed:
            raise StatefulProcessor(
                f"{type(self.processor).__name__} remembers its calls and is the target's: a drafter asks a copy of "
                "it in `context.drafting(context.processors).process(...)`."
            )
        return self.ask(scores, rows, lengths, ids)

    @abstractmethod
    def ask(
        self, scores: torch.Tensor, rows: Sequence[int], lengths: Sequence[int], ids: torch.Tensor
    ) -> torch.Tensor:
        """See [`ProcessorPipeline.process`]."""


class _WithMemory(_Remembering):
    """One memory for the whole batch: it gets the whole batch, whose rows are at the same column."""

    def __init__(self, processor: Any, remembering: Any, wrap: Callable[[Any], Any]) -> None:
        super().__init__(processor)
        self.objects, self._wrap = [remembering], wrap

    def ask(
        self, scores: torch.Tensor, rows: Sequence[int], lengths: Sequence[int], ids: torch.Tensor
    ) -> torch.Tensor:
        (length,) = set(lengths)
        batch = scores.new_zeros((ids.shape[0], scores.shape[1]))
        batch[list(rows)] = scores
        # a copy can begin to change what its original sees too
        with contextlib.nullcontext() if self.originals is None else undisturbed(self.originals):
            return self._wrap(self.objects[0])(ids[:, :length], batch)[list(rows)].to(scores.dtype)


class _MemoryOfEachRow(_Remembering):
    """A processor for each row."""

    def __init__(self, processor: Any, parts: RowProcessors) -> None:
        super().__init__(processor)
        self.objects, self.parts, self.drafts = parts.rows, parts, parts.drafts

    def ask(
        self, scores: torch.Tensor, rows: Sequence[int], lengths: Sequence[int], ids: torch.Tensor
    ) -> torch.Tensor:
        result = torch.empty_like(scores)
        for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            # some write into what they are given
            result[i] = self.objects[row](ids[row : row + 1, :length], scores[i : i + 1].clone())[0]
            self.parts.called(self.objects[row])
        return result


class ProcessorPipeline:
    """A list of logits processors, ready for blocks of positions.

    Args:
        processors (`Sequence`): the list as `generate` prepared it; it is not changed.
        input_ids (`torch.LongTensor` of shape `(B, P)`): prompts, to probe processors of unknown class on a copy.
        vocabulary (`int`): columns of the scores.

    Attributes:
        remembering (`list`): what remembers its calls.
        read (`list`): that of them whose memory does not follow from the tokens alone.
        in_step (`list[str]`): classes of processors with one memory for all rows of a batch.

    Raises:
        StatefulProcessor: a processor remembers its calls, and what it remembers cannot be saved.
        BatchCoupledProcessor: a processor's answer about a row depends on other rows of the batch.
    """

    def __init__(self, processors: Sequence[Any], input_ids: torch.Tensor, vocabulary: int) -> None:
        self.processors = list(processors)
        self._prompt, self._vocabulary = input_ids, vocabulary
        self._stages = [_stage(processor, input_ids, vocabulary) for processor in processors]
        self._described: list[dict[str, Any]] | None = None
        stages = [stage for stage in self._stages if isinstance(stage, _Remembering)]
        whole = [stage for stage in stages if isinstance(stage, _WithMemory)]
        self.remembering = [part for stage in stages for part in stage.objects]
        self.read = [part for stage in whole for part in stage.objects]
        self.in_step = [type(stage.processor).__name__ for stage in whole] if len(input_ids) > 1 else []

    def describe(self) -> list[dict[str, Any]]:
        """Of each processor, in order: class, plain settings, and a digest of all it holds."""
        if self._described is None:
            self._described = [_described(processor) for processor in self.processors]
        return self._described

    @property
    def has_history(self) -> bool:
        """Whether an answer depends on the tokens before it, so that places must be processed in order."""
        return not all(isinstance(stage, _WithoutHistory) for stage in self._stages)

    @property
    def asks_caller(self) -> bool:
        """Whether code of the caller's is asked, which may fail on prefixes that plain `generate` never shows it."""
        return any(isinstance(stage, (_WholeBatch, _PrefixConstrained, _Remembering)) for stage in self._stages)

    def with_list(self, processors: Sequence[Any]) -> ProcessorPipeline:
        """A pipeline of another list; processors that this one holds too are not probed again."""
        other = copy.copy(self)
        known = {id(stage.processor): stage for stage in self._stages}
        other.processors, other._described = list(processors), None
        other._stages = [known.get(id(p)) or _stage(p, self._prompt, self._vocabulary) for p in processors]
        return other

    def sealed(self) -> ProcessorPipeline:
        """The same for drafters, who may ask what remembers only as copies."""
        other = copy.copy(self)
        other._stages = [
            stage.over(stage.objects, sealed=True) if isinstance(stage, _Remembering) else stage
            for stage in self._stages
        ]
        return other

    def drafting(self, copies: Callable[[], dict[int, Any]]) -> ProcessorPipeline:
        """A pipeline for one draft, which shares nothing that remembers.

        Args:
            copies (`Callable`): makes copies of what remembers, by the id of the original; processors of which there
                is none, or that a drafter does not gain from, are left out.
        """
        if not any(isinstance(stage, _Remembering) for stage in self._stages):
            return self
        other, made = copy.copy(self), copies()
        other._stages = []
        for stage in self._stages:
            if isinstance(stage, _Remembering):
                if not stage.drafts or any(id(part) not in made for part in stage.objects):
                    continue
                stage = stage.over([made[id(part)] for part in stage.objects])
            other._stages.append(stage)
        return other

    def hand_back(self, ids: torch.Tensor, ends: Sequence[int]) -> None:
        """Leaves the caller's processors as plain `generate` would leave them.

        Args:
            ids (`torch.LongTensor` of shape `(B, L)`): the result.
            ends (`Sequence[int]`): columns of it that each row filled by itself.
        """
        for stage in self._stages:
            if isinstance(stage, _MemoryOfEachRow):
                stage.parts.hand_back(ids, ends, self._vocabulary)

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
    return {
        "class": settings.pop("kind"),
        "settings": settings,
        "digest": digest_or_unreadable(processor, grammars=True),
    }


def _stage(processor: Any, input_ids: torch.Tensor, vocabulary: int) -> _Stage:
    kind, batch = type(processor), input_ids.shape[0]
    if kind is hf.TopKLogitsWarper:
        return _TopK(processor)
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
    parts = by_row(processor, batch)
    if parts is not None:
        return _MemoryOfEachRow(processor, parts)
    asked, wrap = processor, _same
    if kind is hf.PrefixConstrainedLogitsProcessor:
        asked, copies = processor._prefix_allowed_tokens_fn, processor._num_beams
        wrap = functools.partial(_constrained, copies)

    def call(subject: Any, ids: torch.Tensor, row: int | None) -> torch.Tensor:
        scores = torch.linspace(-1, 1, vocabulary, device=ids.device).repeat(ids.shape[0], 1)
        if row is not None:
            others = torch.arange(len(ids), device=ids.device) != row
            scores[others] = scores[others].flip(-1)
        return wrap(subject)(ids, scores)

    name = getattr(asked, "__qualname__", kind.__name__)
    coupled = BatchCoupledProcessor(
        f"The logits processor {name} lets the rows of a batch depend on each other, or fails on what other rows "
        "hold, and rows reach their tokens in different rounds: generate the rows one by one, or drop the assistant."
    )
    if not is_declared_stateless(asked):
        if not (isinstance(asked, TransactionalLogitsProcessor) or can_be_saved(asked, call, input_ids)):
            raise StatefulProcessor(
                f"What the logits processor {name} may remember of its calls cannot be saved and brought "
                "back, as it must be where drafts are rejected: it cannot be copied, or keeps its memory in a class, "
                "a global or a shared random generator. Keep it in the object itself, or give it `snapshot()` and "
                "`restore(snapshot)` (see hf_exactassist.TransactionalLogitsProcessor). If it remembers nothing, say "
                "`stateless = True` on it."
            )
        saves_itself = isinstance(asked, TransactionalLogitsProcessor)
        if batch > 1 and not (saves_itself or scores_alone(asked, call, input_ids)):
            raise coupled
        return _WithMemory(processor, asked, wrap)
    if kind is hf.PrefixConstrainedLogitsProcessor:
        return _PrefixConstrained(processor)
    return _WholeBatch(processor)


def _same(processor: Any) -> Any:
    return processor


def _constrained(copies: int, allowed: Any) -> Any:
    return hf.PrefixConstrainedLogitsProcessor(allowed, copies)
