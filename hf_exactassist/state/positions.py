"""Processed scores of every position of a block, each with its own prefix."""

from __future__ import annotations

import torch

from ..records import Draft
from .processors import ProcessorPipeline
from .rows import Rows
from .stopping import StoppingRules


def processed_scores(
    processors: ProcessorPipeline, rules: StoppingRules, rows: Rows, draft: Draft, logits: torch.Tensor
) -> torch.Tensor:
    """Applies the processors wherever a draft may be judged.

    Code of the caller's is asked column by column and never about a prefix that cannot be published.

    Args:
        processors (`ProcessorPipeline`): the call's processors.
        rules (`StoppingRules`): say which tokens end a row.
        rows (`Rows`): the rows, with the drafts in their scratch columns.
        draft (`Draft`): the drafts of the active rows.
        logits (`torch.Tensor` of shape `(A, K + 1, V)`): float32, of every position of the block.

    Returns:
        `torch.Tensor` of shape `(A, K + 1, V)`: scores; zeros where there is nothing to judge.
    """
    starts, drafted = rows.active_lengths(), list(draft.lengths)
    scores = torch.zeros_like(logits)
    columns = range(min(starts), max(start + count for start, count in zip(starts, drafted, strict=True)) + 1)
    for block in [[column] for column in columns] if processors.asks_caller else [columns]:
        places = [(i, column - start) for i, start in enumerate(starts) for column in block]
        places = [(i, j) for i, j in places if 0 <= j <= drafted[i]]
        at = ([i for i, _ in places], [j for _, j in places])
        lengths = [starts[i] + j for i, j in places]
        scores[at] = processors.process(logits[at], [rows.active[i] for i in at[0]], lengths, rows.ids)
        for i, j in places if processors.asks_caller else ():
            if j < drafted[i] and _ends_here(rules, int(draft.tokens[i, j]), scores[i, j]):
                drafted[i] = j
    return scores


def _ends_here(rules: StoppingRules, token: int, scores: torch.Tensor) -> bool:
    """Whether nothing can be published after a draft token: it ends the row, or can only be rejected."""
    return token in rules.eos_token_ids or bool(scores[token] == -torch.inf and scores.amax() > -torch.inf)
