"""Stateful processors of known classes, taken apart into one processor for each row.

Rows of a batch reach their tokens in different rounds. A processor that keeps a separate memory for every row can be
asked about one row at a time by giving each row a processor of its own, made the way the class itself would make it
for a batch of one.
"""

from __future__ import annotations

import contextlib
import copy
import types
from collections.abc import Sequence
from typing import Any

import torch
from transformers.generation import logits_process as hf

from ..errors import StatefulProcessor


class RowProcessors:
    """The rows' processors of one processor that the caller gave.

    Args:
        processor: the caller's; not changed before [`hand_back`].
        batch (`int`): rows of the call.

    Attributes:
        rows (`list`): one processor for each row, called with that row alone.
        drafts (`bool`): whether a drafter gains from asking a copy of it.

    Raises:
        StatefulProcessor: it has been used already, or does not fit the batch.
    """

    drafts = True

    def __init__(self, processor: Any, batch: int) -> None:
        self.processor = processor
        self.rows = [self.row(i, batch) for i in range(batch)]

    def row(self, i: int, batch: int) -> Any:
        """A processor for row `i` alone."""
        raise NotImplementedError

    def hand_back(self, ids: torch.Tensor, ends: Sequence[int], vocabulary: int) -> None:
        """Leaves the caller's processor as plain `generate` would leave it.

        Args:
            ids (`torch.LongTensor` of shape `(B, L)`): the result.
            ends (`Sequence[int]`): columns of it that each row filled by itself.
            vocabulary (`int`): columns of the scores.
        """

    def _read_ends(self, ids: torch.Tensor, ends: Sequence[int], vocabulary: int) -> None:
        """Shows each row that ended before others its last token, as plain `generate` does while the others go on."""
        for i, (row, end) in enumerate(zip(self.rows, ends, strict=True)):
            if end < ids.shape[1]:
                with contextlib.suppress(Exception):  # whatever a foreign object says of it, the text is there
                    row(ids[i : i + 1, :end], torch.zeros((1, vocabulary), device=ids.device))

    def called(self, row: Any) -> None:
        """A row's processor has been called."""

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise StatefulProcessor(f"The logits processor {type(self.processor).__name__} {what}")

    def _require_new(self, is_new: bool) -> None:
        self._require(is_new, "has been used before and goes on from there: make a new one for every call.")


class Guidance(RowProcessors):
    """Classifier-free guidance: a negative prompt and a cache for each row.

    Drafts are made without: the target's forward for every draft token would cost what drafting saves.
    """

    drafts = False

    def row(self, i: int, batch: int) -> Any:
        """See [`RowProcessors.row`]."""
        context = self.processor.unconditional_context
        self._require_new(context["first_pass"])
        given = [context[name] for name in ("input_ids", "attention_mask") if context[name] is not None]
        fits = all(len(part) == batch for part in given)
        self._require(fits, f"needs one negative prompt for each of the {batch} rows: repeat `negative_prompt_ids`.")
        ours = copy.copy(self.processor)
        ours.unconditional_context = {
            name: part[i : i + 1] if isinstance(part, torch.Tensor) else part for name, part in context.items()
        }
        return ours


class Watermark(RowProcessors):
    """SynthID: the last tokens and the contexts that were seen, for each row."""

    def row(self, i: int, batch: int) -> Any:
        """See [`RowProcessors.row`]."""
        self._require_new(self.processor.state is None)
        return copy.copy(self.processor)

    def hand_back(self, ids: torch.Tensor, ends: Sequence[int], vocabulary: int) -> None:
        """See [`RowProcessors.hand_back`]."""
        states = [row.state for row in self.rows]
        if all(state is not None for state in states):
            whole = self.processor.state = copy.copy(states[0])
            whole.num_calls = max(state.num_calls for state in states)
            whole.context = torch.cat([state.context for state in states])
            whole.context_history = torch.cat([state.context_history for state in states])


class XGrammar(RowProcessors):
    """`xgrammar.contrib.hf.LogitsProcessor`: a grammar and a matcher for each row."""

    def row(self, i: int, batch: int) -> Any:
        """See [`RowProcessors.row`]."""
        grammars = self.processor.compiled_grammars
        self._require_new(not self.processor.matchers and not self.processor.prefilled)
        fits = len(grammars) in (1, batch)
        self._require(fits, f"has {len(grammars)} grammars for {batch} rows: give one, or one for each row.")
        ours = copy.copy(self.processor)
        ours.matchers, ours.compiled_grammars = [], [grammars[i % len(grammars)]]
        return ours

    def hand_back(self, ids: torch.Tensor, ends: Sequence[int], vocabulary: int) -> None:
        """See [`RowProcessors.hand_back`]."""
        self._read_ends(ids, ends, vocabulary)
        if all(row.prefilled for row in self.rows):
            self.processor.prefilled, self.processor.batch_size = True, len(self.rows)
            self.processor.matchers = [row.matchers[0] for row in self.rows]
            self.processor.compiled_grammars = [row.compiled_grammars[0] for row in self.rows]
            self.processor.token_bitmask = torch.cat([row.token_bitmask for row in self.rows])


class Outlines(RowProcessors):
    """The processors of Outlines, whose state lies in a list with one entry for each row."""

    # by class, the lists of state, and tensors with a row for each
    lists: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()

    def row(self, i: int, batch: int) -> Any:
        """See [`RowProcessors.row`]."""
        self._require(
            self.processor.is_first_token,
            "has been used before: call its `reset()`, or make a new one for every call.",
        )
        return copy.copy(self.processor)

    def hand_back(self, ids: torch.Tensor, ends: Sequence[int], vocabulary: int) -> None:
        """See [`RowProcessors.hand_back`]."""
        if any(row.is_first_token for row in self.rows):
            return
        self._read_ends(ids, ends, vocabulary)
        for name, part in vars(self.rows[0]).items():
            # the first call also chooses methods
            bound = isinstance(part, types.MethodType)
            setattr(self.processor, name, types.MethodType(part.__func__, self.processor) if bound else part)
        for name in self.lists:
            setattr(self.processor, name, [_plain(getattr(row, name)[0]) for row in self.rows])
        for name in self.tensors:
            setattr(self.processor, name, torch.cat([getattr(row, name) for row in self.rows]))


class OutlinesCore(Outlines):
    """Regular expressions of Outlines, whose guides cannot be copied without their index."""

    lists = ("_guides", "_bitmasks")

    def called(self, row: Any) -> None:
        """See [`RowProcessors.called`]: the guides are made by the first call."""
        row._guides = [
            guide if isinstance(guide, _Retraceable) else _Retraceable(guide, row.index) for guide in row._guides
        ]


class OutlinesXGrammar(Outlines):
    """Grammars of Outlines through xgrammar."""

    lists, tensors = ("_matchers",), ("_bitmask",)


class OutlinesLLGuidance(Outlines):
    """Grammars of Outlines through llguidance."""

    lists, tensors = ("ll_matchers",), ("bitmask",)


class _Retraceable:
    """A guide of `outlines_core` with the tokens it has read, which lead a new guide over the same index there."""

    def __init__(self, guide: Any, index: Any, tokens: Sequence[int] = ()) -> None:
        self.guide, self.index, self.tokens = guide, index, list(tokens)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "guide" not in vars(self):
            raise AttributeError(name)
        return getattr(self.guide, name)

    def advance(self, token_id: int, return_tokens: bool = True) -> Any:
        """Reads a token; what the guide refuses is not noted."""
        answer = self.guide.advance(token_id, return_tokens)
        self.tokens.append(token_id)
        return answer

    def fork(self) -> _Retraceable:
        """Another guide that has read the same."""
        guide = type(self.guide)(self.index)
        for token in self.tokens:
            guide.advance(token, False)
        return _Retraceable(guide, self.index, self.tokens)


def _plain(part: Any) -> Any:
    return part.guide if isinstance(part, _Retraceable) else part


# by name, so that nobody needs these packages
_KNOWN: dict[tuple[str, str], type[RowProcessors]] = {
    ("xgrammar.contrib.hf", "LogitsProcessor"): XGrammar,
    ("outlines.backends.outlines_core", "OutlinesCoreLogitsProcessor"): OutlinesCore,
    ("outlines.backends.xgrammar", "XGrammarLogitsProcessor"): OutlinesXGrammar,
    ("outlines.backends.llguidance", "LLGuidanceLogitsProcessor"): OutlinesLLGuidance,
    (hf.__name__, hf.UnbatchedClassifierFreeGuidanceLogitsProcessor.__name__): Guidance,
    (hf.__name__, hf.SynthIDTextWatermarkLogitsProcessor.__name__): Watermark,
}


def by_row(processor: Any, batch: int) -> RowProcessors | None:
    """A known processor's rows, or `None` for one of unknown class.

    Args:
        processor: the caller's.
        batch (`int`): rows of the call.

    Raises:
        StatefulProcessor: it has been used already, or does not fit the batch.
    """
    kind = type(processor)
    known = _KNOWN.get((kind.__module__, kind.__name__))
    return None if known is None else known(processor, batch)
