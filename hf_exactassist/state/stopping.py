"""Stopping before publication: criteria see every prefix a serial decode would show them (contract 0x05B, 0x06)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StopStringCriteria,
)

from ..errors import BatchCoupledCriterion, InvalidArgument
from .forks import fork
from .purity import is_declared_stateless
from .reach import digest_or_unreadable
from .rows import Rows


_ROW_BY_ROW = (MaxTimeCriteria, StopStringCriteria)


class StoppingRules:
    """The stopping criteria of a call, asked row by row and prefix by prefix.

    Args:
        criteria (`Sequence`): the list as `generate` prepared it.

    Attributes:
        max_length (`int`): columns at most, prompt included.
        eos_token_ids (`frozenset[int]`): tokens that end a row.
        pads_finished_rows (`bool`): whether plain `generate` pads a row after its stop; without an EOS id it goes on
            decoding it until the last row has stopped.
        remembering (`list`): criteria that remember their calls.
        in_step (`list[str]`): classes of criteria that must be asked about all rows of a batch at once.

    Raises:
        InvalidArgument: nothing limits the length.
    """

    def __init__(self, criteria: Sequence[Any]) -> None:
        limits = [rule.max_length for rule in criteria if type(rule) is MaxLengthCriteria]
        if not limits:
            raise InvalidArgument("Nothing limits the generated length: set `max_new_tokens` or `max_length`.")
        self.max_length = int(min(limits))
        eos = [rule.eos_token_id for rule in criteria if type(rule) is EosTokenCriteria]
        self.eos_token_ids = frozenset(token for ids in eos for token in ids.tolist())
        self.pads_finished_rows = any(hasattr(rule, "eos_token_id") for rule in criteria)
        self.remembering: list[Any] = []
        self.in_step: list[str] = []
        self._others = [rule for rule in criteria if type(rule) not in (MaxLengthCriteria, EosTokenCriteria)]

    def describe(self) -> dict[str, Any]:
        """The rules as a call's manifest holds them."""
        return {
            "max_length": self.max_length,
            "eos": sorted(self.eos_token_ids),
            "criteria": [_described(rule) for rule in self._others],
        }

    def prepare(self, batch: int) -> None:
        """Finds out which criteria remember, without calling any.

        Args:
            batch (`int`): rows of the call.
        """
        for rule in self._others:
            if type(rule) in _ROW_BY_ROW or is_declared_stateless(rule):
                continue
            # what cannot be copied, such as one that waits for an event, is still asked once a prefix and in order
            with contextlib.suppress(Exception):
                fork(rule)
                self.remembering.append(rule)
            if batch > 1:
                self.in_step.append(type(rule).__name__)

    def up_to_end(self, tokens: list[int]) -> list[int]:
        """The tokens up to the first one that ends a row."""
        at = next((i for i, token in enumerate(tokens) if token in self.eos_token_ids), len(tokens))
        return tokens[: at + 1]

    def cut(
        self,
        rows: Rows,
        tokens: Sequence[Sequence[int]],
        scores: Callable[[int], Any],
        asked: Sequence[int],
        known: Sequence[int | None],
    ) -> tuple[tuple[tuple[int, ...], ...], tuple[int | None, ...]]:
        """Cuts each active row's new tokens at its first stop.

        Args:
            rows (`Rows`): the rows; `tokens` already lie in their scratch columns.
            tokens (`Sequence[Sequence[int]]`): new tokens of each active row, within its budget.
            scores (`Callable[[int], Any]`): `scores(n)` is the `scores` argument for criteria after `n` new tokens.
            asked (`Sequence[int]`): columns up to which criteria have been asked.
            known (`Sequence[int | None]`): the stops that were found so.

        Returns:
            the tokens to publish, and the length in columns at which each row stopped, `None` if it did not.

        Raises:
            BatchCoupledCriterion: a criterion starts to answer once for a whole batch.
        """
        starts = rows.active_lengths()
        kept = [tuple(row) for row in tokens]
        if rows.in_step:
            kept = [row[: min(map(len, tokens))] for row in kept]
        stops = list(known)
        # column by column, so that a criterion sees prefixes in the order of their length
        for length in range(min(asked) + 1, max(s + len(t) for s, t in zip(starts, kept, strict=True)) + 1):
            here = [i for i, end in enumerate(asked) if end < length <= starts[i] + len(kept[i]) and stops[i] is None]
            last = [kept[i][length - starts[i] - 1] for i in here]
            answers = self.stops_at(rows, [rows.active[i] for i in here], last, length, scores) if here else []
            for i, answer in zip(here, answers, strict=True):
                stops[i] = length if answer else None
            if rows.stop_alone:
                ended = [i for i, answer in zip(here, answers, strict=True) if answer]
                for i in range(len(kept)) if rows.in_step and ended else ended:
                    kept[i] = kept[i][: length - starts[i]]
        return tuple(kept), tuple(stops)

    def stops_at(
        self, rows: Rows, asked: Sequence[int], last: Sequence[int], length: int, scores: Callable[[int], Any]
    ) -> list[bool]:
        """Whether each asked row stops at `length` columns.

        Args:
            rows (`Rows`): the rows, with tokens in the scratch columns.
            asked (`Sequence[int]`): rows of the batch.
            last (`Sequence[int]`): the token of each at that length.
            length (`int`): columns of the prefixes.
            scores (`Callable[[int], Any]`): see [`cut`].
        """
        answers = [length >= self.max_length or token in self.eos_token_ids for token in last]
        for rule in self._others:
            given = scores(length - rows.prompt_length)
            if rows.in_step and type(rule) not in _ROW_BY_ROW:
                # as plain `generate` takes it: one answer, or one for each row
                answer = rule(rows.ids[:, :length], given)
                whole = torch.as_tensor(answer, device=rows.ids.device).expand(rows.batch).tolist()
                said = [bool(whole[row]) for row in asked]
            elif type(rule) in _ROW_BY_ROW or rows.batch == 1:
                answers_alone = (rule(rows.ids[row : row + 1, :length], given) for row in asked)
                said = [bool(torch.as_tensor(answer, device=rows.ids.device).any()) for answer in answers_alone]
            else:
                answer = _one_answer_per_row(rule, rule(rows.ids[:, :length], given), rows.batch)
                said = [bool(answer[row]) for row in asked]
            answers = [a or b for a, b in zip(answers, said, strict=True)]
        return answers


def _described(rule: Any) -> dict[str, Any]:
    described: dict[str, Any] = {"class": f"{type(rule).__module__}.{type(rule).__qualname__}"}
    if type(rule) is MaxTimeCriteria:
        return {**described, "max_time": rule.max_time}
    if type(rule) is StopStringCriteria:
        return {**described, "stop_strings": list(rule.stop_strings)}
    return {**described, "digest": digest_or_unreadable(rule)}


def _one_answer_per_row(rule: Any, answer: Any, batch: int) -> torch.Tensor:
    """A criterion's answers, `(B,)`; a single one would stop every row where one does."""
    if not isinstance(answer, torch.Tensor) or answer.numel() != batch:
        raise BatchCoupledCriterion(
            f"{type(rule).__name__} returned one answer for {batch} rows, so none could stop alone: return a bool "
            "tensor with one entry per row, or generate the rows one by one."
        )
    return answer.reshape(-1)
