"""The token rows of one call."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..records import Commit


class Rows:
    """Tokens of every row of a batch, in the columns plain `generate` would put them.

    Row `b` is `ids[b, :lengths[b]]`; the columns after it are scratch where drafts lie while they are judged.

    Args:
        input_ids (`torch.LongTensor` of shape `(B, P)`): prompts; `P` may be 0 where they come as embeddings.
        prompt_mask (`torch.Tensor` of shape `(B, P)`, *optional*): 0 marks padding.
        max_length (`int`): columns at most, prompt included.
        pad_token_id (`int`): fills the columns after a row's end.
        stop_alone (`bool`): whether a row ends at its own stop. Without an EOS id plain `generate` lets every row go
            on until the last one has stopped, and so do we.
    """

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
        self.lengths = [self.prompt_length] * batch
        # one past the last scratch column in use
        self._touched = list(self.lengths)
        self.stops: list[int | None] = [None] * batch
        self.active = list(range(batch))
        if prompt_mask is None or prompt_mask.shape != input_ids.shape:
            self.prompt_tokens = [self.prompt_length] * batch
        else:
            self.prompt_tokens = prompt_mask.sum(dim=1).tolist()

    def _reserve(self, columns: int) -> None:
        """Makes room for columns, in steps: `max_length` may be any number."""
        columns = min(columns, max(self.max_length, self.prompt_length))
        missing = columns - self.ids.shape[1]
        if missing > 0:
            more = min(max(missing, self.ids.shape[1] // 2), max(self.max_length, columns) - self.ids.shape[1])
            self.ids = torch.cat([self.ids, self.ids.new_full((self.ids.shape[0], more), self.pad_token_id)], dim=1)

    @property
    def batch(self) -> int:
        """Rows of the call, finished ones included."""
        return len(self.lengths)

    def active_lengths(self) -> list[int]:
        """Columns published so far, for each active row."""
        return [self.lengths[row] for row in self.active]

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
        """Puts the tokens a round may publish into the scratch columns of each active row."""
        self._reserve(max(self.lengths[row] + len(new) for row, new in zip(self.active, tokens, strict=True)))
        for row, new in zip(self.active, tokens, strict=True):
            start = self.lengths[row]
            self.ids[row, start : start + len(new)] = torch.tensor(new, device=self.ids.device)
            self._touched[row] = max(self._touched[row], start + len(new))

    def publish(self, commit: Commit) -> list[int]:
        """Makes laid-out tokens visible, and says which active rows go on.

        Args:
            commit (`Commit`): the round, one entry per active row.

        Returns:
            `list[int]`: indices into the old `active` of the rows that remain.
        """
        for row, tokens, stop in zip(commit.rows, commit.tokens, commit.stops, strict=True):
            end = self.lengths[row] + len(tokens)
            self.ids[row, end : self._touched[row]] = self.pad_token_id
            self._touched[row] = end
            self.lengths[row] = end
            self.stops[row] = stop if self.stops[row] is None else self.stops[row]
        going = [i for i, row in enumerate(self.active) if not self._finished(row)]
        self.active = [self.active[i] for i in going]
        return going

    def end(self, rows: Sequence[int]) -> None:
        """Ends active rows where they stand."""
        for row in rows:
            self.ids[row, self.lengths[row] : self._touched[row]] = self.pad_token_id
            self.stops[row] = self.lengths[row] if self.stops[row] is None else self.stops[row]
        self.active = [row for row in self.active if row not in rows]

    def _finished(self, row: int) -> bool:
        if self.stop_alone or self.lengths[row] >= self.max_length:
            return self.stops[row] is not None
        end = self.final_length()
        return end is not None and self.lengths[row] >= end

    def final_length(self) -> int | None:
        """Columns of the result, or `None` while a row that decides it still runs."""
        if any(stop is None for stop in self.stops):
            return None
        return max(stop for stop in self.stops if stop is not None)

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


def prefixes(ids: torch.Tensor, rows: Sequence[int], length: int) -> torch.Tensor:
    """The first `length` tokens of some rows, as processors and criteria want them.

    Returns:
        `torch.LongTensor` of shape `(len(rows), length)`.
    """
    return ids[list(rows), :length]
