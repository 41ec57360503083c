"""Greedy judging: keep drafts while they are the target's own choice (contract 0x02D)."""

from __future__ import annotations

import torch

from ..records import Draft, Verdict
from .coupling import accepted_prefix, take_row


def verify_greedy(scores: torch.Tensor, draft: Draft) -> Verdict:
    """Accepts the longest prefix of arg-max tokens; the terminal token is the arg-max after it.

    Args:
        scores (`torch.Tensor` of shape `(B, K + 1, V)`): processed target scores; row `i` scores draft token `i`, and
            row `draft.lengths[b]` the bonus token. Rows beyond it mean nothing.
        draft (`Draft`): the judged draft; its `probs` play no part.

    Returns:
        `Verdict`: accepted lengths and terminal tokens.
    """
    choice = scores.argmax(dim=-1)
    accepted = accepted_prefix(choice[:, : draft.tokens.shape[1]] == draft.tokens, draft.lengths)
    return Verdict(accepted, take_row(choice, accepted))
