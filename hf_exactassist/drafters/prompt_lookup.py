"""Prompt lookup (Saxena 2023): the continuation of an earlier occurrence of the last tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..records import Draft
from .base import Drafter


class PromptLookupDrafter(Drafter):
    """Point-mass drafts copied from the row's own text; no model, no probabilities.

    Args:
        num_tokens (`int`): tokens per draft at most (`prompt_lookup_num_tokens`).
        max_matching_ngram_size (`int`): longest run of last tokens that is looked up; shorter ones are tried after it.
    """

    def __init__(self, num_tokens: int, max_matching_ngram_size: int = 2) -> None:
        self.num_tokens = num_tokens
        self.max_matching_ngram_size = max_matching_ngram_size

    def propose(self, lengths: Sequence[int]) -> Draft:
        """See [`Drafter.propose`]. Rows where nothing matches get no draft."""
        rows = self.context.rows
        found = []
        for row, wanted in zip(rows.active, lengths, strict=True):
            text = rows.ids[row, : rows.lengths[row]]
            if rows.prompt_mask is not None and rows.prompt_mask.shape[1] == rows.prompt_length:
                text = torch.cat([text[: rows.prompt_length][rows.prompt_mask[row] != 0], text[rows.prompt_length :]])
            found.append(self._continuation(text, min(wanted, self.num_tokens)))
        tokens = torch.zeros(len(found), max(map(len, found), default=0), dtype=torch.long, device=rows.ids.device)
        for row, continuation in zip(tokens, found, strict=True):
            row[: len(continuation)] = continuation
        return Draft(tokens, tuple(len(continuation) for continuation in found))

    def _continuation(self, text: torch.Tensor, wanted: int) -> torch.Tensor:
        """What followed the first earlier occurrence of the longest matching run of last tokens."""
        empty = text[:0]
        if wanted <= 0:
            return empty
        for size in range(min(self.max_matching_ngram_size, len(text) - 1), 0, -1):
            # the last window is the run itself and has no continuation
            windows = text[:-1].unfold(0, size, 1)
            matches = (windows == text[-size:]).all(dim=1).nonzero()
            if len(matches):
                start = int(matches[0]) + size
                return self._usable(text[start : start + wanted])
        return empty

    def _usable(self, tokens: torch.Tensor) -> torch.Tensor:
        """The tokens up to the first one that ends a row or lies outside the target's event space."""
        for i, token in enumerate(tokens.tolist()):
            if token >= self.context.vocabulary:
                return tokens[:i]
            if token in self.context.eos_token_ids:
                return tokens[: i + 1]
        return tokens
