"""The token rows of one call."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..records import Commit, Spent
from ..telemetry import AssistStats


@dataclass(frozen=True)
class State:
    """Everything a call has published. A round makes a successor aside and puts it in one assignment (contract 0x06A).

    Attributes:
        generation (`int`): states before this one.
        lengths (`tuple[int, ...]`): columns of each row that are published.
        stops (`tuple[int | None, ...]`): length at which a stopping criterion first held for a row.
        active (`tuple[int, ...]`): rows that go on.
        spent (`tuple[Spent, ...]`): random numbers each row has used up.
        frontiers (`tuple[int, ...]`): last published token of each row, -1 where there is none.
        hashes (`tuple`): SHA-256 objects over each row's tokens, padding left out; copied before they are fed.
        stats (`AssistStats`): counters.
        memory (`Any`): what processors and criteria remember, as `Recall.take` wrote it down.
        last (`Commit`, *optional*): the round published last.
    """

    generation: int
    lengths: tuple[int, ...]
    stops: tuple[int | None, ...]
    active: tuple[int, ...]
    spent: tuple[Spent, ...]
    frontiers: tuple[int, ...]
    hashes: tuple[Any, ...]
    stats: AssistStats
    memory: Any = None
    last: Commit | None = None


class Rows:
    """Tokens of every row of a batch, in the columns plain `generate` would put them.

    Row `b` is `ids[b, :lengths[b]]`; the columns after it are scratch where drafts lie while they are judged. What is
    published changes with `state` alone.

    Args:
        input_ids (`torch.LongTensor` of shape `(B, P)`): prompts; `P` may be 0 where they come as embeddings.
        prompt_mask (`torch.Tensor` of shape `(B, P)`, *optional*): 0 marks padding.
        max_length (`int`): columns at most, prompt included.
        pad_token_id (`int`): fills the columns after a row's end.
        stop_alone (`bool`): whether a row ends at its own stop. Without an EOS id plain `generate` lets every row go
            on until the last one has stopped, and so do we.

    Attributes:
        in_step (`bool`): whether all rows publish equally many tokens a round, because something must be asked about
            the whole batch at once.
    """

    in_step = False

    def __init__(
        self,
        input_ids: torch.Tensor,
        prompt_mask: torch.Tensor | None,
        max_length: int,
        pad_token_id: int,
        stop_alone: bool,
    ) -> None:
        batch, self.prompt_length = input_ids.shape
        input_ids = input_ids.long()
        self.max_length = max_length
        self.pad_token_id = pad_token_id
        self.stop_alone = stop_alone or batch == 1
        self.ids = input_ids.clone()
        self._reserve(self.prompt_length + 64)
        self.prompt_mask = prompt_mask
        # one past the last scratch column in use
        self._touched = [self.prompt_length] * batch
        prompts = [list(row) for row in input_ids.tolist()]
        if prompt_mask is not None and prompt_mask.shape == input_ids.shape:
            kept = (prompt_mask != 0).tolist()
            prompts = [[t for t, k in zip(*pair, strict=True) if k] for pair in zip(prompts, kept, strict=True)]
        self.prompt_tokens = [len(row) for row in prompts]
        self.state = State(
            generation=0,
            lengths=(self.prompt_length,) * batch,
            stops=(None,) * batch,
            active=tuple(range(batch)),
            spent=(Spent(),) * batch,
            frontiers=tuple(row[-1] if row else -1 for row in prompts),
            hashes=tuple(fed(hashlib.sha256(), row) for row in prompts),
            stats=AssistStats(),
        )

    def _reserve(self, columns: int) -> None:
        """Makes room for columns, in steps: `max_length` may be any number."""
        columns = min(columns, max(self.max_length, self.prompt_length))
        missing = columns - self.ids.shape[1]
        if missing > 0:
            more = min(max(missing, self.ids.shape[1] // 2), max(self.max_length, columns) - self.ids.shape[1])
            self.ids = torch.cat([self.ids, self.ids.new_full((self.ids.shape[0], more), self.pad_token_id)], dim=1)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Columns of each row that are published."""
        return self.state.lengths

    @property
    def stops(self) -> tuple[int | None, ...]:
        """Length at which each row's first stop was met."""
        return self.state.stops

    @property
    def active(self) -> list[int]:
        """Original indices of the rows that go on."""
        return list(self.state.active)

    @property
    def batch(self) -> int:
        """Rows of the call, finished ones included."""
        return len(self.lengths)

    def active_lengths(self) -> list[int]:
        """Columns published so far, for each active row."""
        return [self.lengths[row] for row in self.active]

    def frontiers(self) -> list[int]:
        """Last published token of each active row."""
        return [self.state.frontiers[row] for row in self.active]

    def positions(self) -> list[int]:
        """Logical position of each active row's next token: padding does not count, so it is the same in any batch."""
        return [self.prompt_tokens[row] + self.lengths[row] - self.prompt_length for row in self.active]

    def steps(self) -> list[int]:
        """Index of each active row's next token among the new ones."""
        return [self.lengths[row] - self.prompt_length for row in self.active]

    def budgets(self) -> list[int]:
        """Tokens each active row may still publish."""
        return [self.max_length - self.lengths[row] for row in self.active]

    def write_scratch(self, offset: int, tokens: torch.Tensor) -> None:
        """Puts one draft token of each active row `offset` columns after its end.

        Args:
            offset (`int`): draft position, 0 for the first.
            tokens (`torch.LongTensor` of shape `(len(active),)`): the tokens.
        """
        self._reserve(max(self.active_lengths()) + offset + 1)
        columns = [min(length + offset, self.max_length - 1) for length in self.active_lengths()]
        self.ids[self.active, columns] = tokens.to(self.ids.device)
        for row, column in zip(self.active, columns, strict=True):
            self._touched[row] = max(self._touched[row], column + 1)

    def lay_out(self, tokens: Sequence[Sequence[int]]) -> None:
        """Puts drafts, or the tokens a round may publish, into the scratch columns of each active row."""
        self._reserve(max(self.lengths[row] + len(new) for row, new in zip(self.active, tokens, strict=True)))
        for row, new in zip(self.active, tokens, strict=True):
            start = self.lengths[row]
            if len(new) == 1:
                # most rounds of a call that does not draft
                self.ids[row, start] = new[0]
            else:
                self.ids[row, start : start + len(new)] = torch.tensor(new, dtype=torch.long, device=self.ids.device)
            self._touched[row] = max(self._touched[row], start + len(new))

    def publish(self, commit: Commit, spent: Sequence[Spent] | None = None, memory: Any = None) -> None:
        """Makes laid-out tokens visible, in one assignment.

        Args:
            commit (`Commit`): the round, one entry per active row.
            spent (`Sequence[Spent]`, *optional*): random numbers used up after it; unchanged by default.
            memory (`Any`): what processors and criteria remember after it.
        """
        old = self.state
        lengths, stops, counts = list(old.lengths), list(old.stops), list(old.spent)
        frontiers, hashes = list(old.frontiers), list(old.hashes)
        for i, (row, tokens, stop) in enumerate(zip(commit.rows, commit.tokens, commit.stops, strict=True)):
            lengths[row] += len(tokens)
            stops[row] = stop if stops[row] is None else stops[row]
            counts[row] = counts[row] if spent is None else spent[i]
            frontiers[row] = tokens[-1] if tokens else frontiers[row]
            hashes[row] = fed(hashes[row].copy(), tokens)
        going = tuple(row for row in old.active if not self._finished(lengths, stops, row))
        successor = State(
            generation=old.generation + 1,
            lengths=tuple(lengths),
            stops=tuple(stops),
            active=going,
            spent=tuple(counts),
            frontiers=tuple(frontiers),
            hashes=tuple(hashes),
            stats=old.stats.after(commit, is_round=old.generation > 0),
            memory=memory,
            last=commit,
        )
        self._clear(commit.rows, lengths)
        self.state = successor

    def end(self, rows: Sequence[int]) -> None:
        """Ends active rows where they stand."""
        old = self.state
        stops = list(old.stops)
        for row in rows:
            stops[row] = old.lengths[row] if stops[row] is None else stops[row]
        self._clear(rows, old.lengths)
        going = tuple(row for row in old.active if row not in rows)
        self.state = replace(old, generation=old.generation + 1, stops=tuple(stops), active=going)

    def _clear(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Takes scratch beyond the given lengths back; what is published does not notice."""
        for row in rows:
            if self._touched[row] > lengths[row]:
                self.ids[row, lengths[row] : self._touched[row]] = self.pad_token_id
            self._touched[row] = lengths[row]

    def _finished(self, lengths: Sequence[int], stops: Sequence[int | None], row: int) -> bool:
        if self.stop_alone or lengths[row] >= self.max_length:
            return stops[row] is not None
        end = _last_stop(stops)
        return end is not None and lengths[row] >= end

    def final_length(self) -> int | None:
        """Columns of the result, or `None` while a row that decides it still runs."""
        return _last_stop(self.stops)

    def certain_length(self, row: int) -> int:
        """Columns of a row that the result will hold; one that goes on for others may be cut where they end."""
        if self.stop_alone:
            return self.lengths[row]
        reached = [length if stop is None else stop for length, stop in zip(self.lengths, self.stops, strict=True)]
        return min(self.lengths[row], max(reached))

    def complete_columns(self) -> int:
        """Columns that will not change any more: every row has reached them or is finished."""
        if not self.active:
            return self.final_length() or self.prompt_length
        return min(self.active_lengths())

    def sequences(self) -> torch.Tensor:
        """The result, padded on the right.

        Returns:
            `torch.LongTensor` of shape `(B, L)`.
        """
        return self.ids[:, : self.complete_columns()].clone()


def _last_stop(stops: Sequence[int | None]) -> int | None:
    """Columns at which the last row stopped, `None` while one goes on."""
    known = [stop for stop in stops if stop is not None]
    return max(known) if len(known) == len(stops) else None


def fed(digest: Any, tokens: Sequence[int]) -> Any:
    """A digest of text that goes on with these tokens; the given object itself."""
    digest.update(np.asarray(tokens, dtype="<i8").tobytes())
    return digest


def prefixes(ids: torch.Tensor, rows: Sequence[int], length: int) -> torch.Tensor:
    """The first `length` tokens of some rows, as processors and criteria want them.

    Returns:
        `torch.LongTensor` of shape `(len(rows), length)`.
    """
    return ids[list(rows), :length]
