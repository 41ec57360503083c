"""Prompt lookup (Saxena 2023): the continuation of an earlier occurrence of the last tokens."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch

from ..records import Commit, Draft
from .base import Drafter, DraftingContext


class PromptLookupDrafter(Drafter):
    """Point-mass drafts copied from the row's own text; no model, no probabilities.

    Args:
        num_tokens (`int`): tokens per draft at most (`prompt_lookup_num_tokens`).
        max_matching_ngram_size (`int`): longest run of last tokens that is looked up; shorter ones are tried after it.
    """

    def __init__(self, num_tokens: int, max_matching_ngram_size: int = 2) -> None:
        self.num_tokens = num_tokens
        self.max_matching_ngram_size = max_matching_ngram_size

    def start(self, context: DraftingContext) -> None:
        """See [`Drafter.start`]. The prompts are looked at once; what is published then is told."""
        super().start(context)
        rows = context.rows
        texts, mask = rows.ids[:, : rows.prompt_length].tolist(), rows.prompt_mask
        if mask is not None and mask.shape[1] == rows.prompt_length:
            texts = [[*itertools.compress(*pair)] for pair in zip(texts, (mask != 0).tolist(), strict=True)]
        # of each row, on the host
        self._texts = [np.asarray(text, dtype=np.int64) for text in texts]

    def propose(self, lengths: Sequence[int]) -> Draft:
        """See [`Drafter.propose`]. Rows where nothing matches get no draft."""
        rows = self.context.rows
        found = [
            self._continuation(self._texts[row], min(wanted, self.num_tokens))
            for row, wanted in zip(rows.active, lengths, strict=True)
        ]
        width = max(map(len, found), default=0)
        lines = [[*tokens, *[0] * (width - len(tokens))] for tokens in found]
        tokens = torch.tensor(lines, dtype=torch.long, device=rows.ids.device).view(len(found), width)
        return Draft(tokens, tuple(map(len, found)))

    def observe(self, commit: Commit) -> None:
        """See [`Drafter.observe`]."""
        for row, tokens in zip(commit.rows, commit.tokens, strict=True):
            self._texts[row] = np.append(self._texts[row], np.asarray(tokens, dtype=np.int64))

    def _continuation(self, text: np.ndarray, wanted: int) -> list[int]:
        """What followed the first earlier occurrence of the longest matching run of last tokens."""
        if wanted <= 0:
            return []
        for size in range(min(self.max_matching_ngram_size, len(text) - 1), 0, -1):
            # the last window is the run itself and has no continuation
            windows = np.lib.stride_tricks.sliding_window_view(text[:-1], size)
            matches = (windows == text[-size:]).all(axis=1).nonzero()[0]
            if len(matches):
                start = int(matches[0]) + size
                return self._usable(text[start : start + wanted].tolist())
        return []

    def _usable(self, tokens: list[int]) -> list[int]:
        """The tokens up to the first one that ends a row or lies outside the target's event space."""
        for i, token in enumerate(tokens):
            if token >= self.context.vocabulary:
                return tokens[:i]
            if token in self.context.eos_token_ids:
                return tokens[: i + 1]
        return tokens
