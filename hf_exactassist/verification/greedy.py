"""Greedy judging: keep drafts while they are the target's own choice (contract 0x02D)."""

from __future__ import annotations

import torch

from ..records import Draft, Verdict
from .coupling import accepted_prefix, take_row
from .distributions import likeliest


def near_ties(scores: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Where rounding may decide which score is the largest: the two best lie within two units in the last place.

    Args:
        scores (`torch.Tensor` of shape `(..., V)`): processed target scores, of at least two tokens.
        dtype (`torch.dtype`): what the target computes in.

    Returns:
        `torch.BoolTensor` of shape `(...)`.
    """
    best, second = scores.topk(2, dim=-1).values.unbind(dim=-1)
    exponent = torch.frexp(best.abs()).exponent - 1
    unit = torch.ldexp(torch.full_like(best, torch.finfo(dtype).eps), exponent)
    return best - second <= 2 * unit


def keeps_greedy(scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Whether each draft token is the target's own choice.

    Args:
        scores (`torch.Tensor` of shape `(..., V)`): processed target scores at the places of the tokens.
        tokens (`torch.LongTensor` of shape `(...)`): draft tokens.

    Returns:
        `torch.BoolTensor` of shape `(...)`.
    """
    return likeliest(scores) == tokens


def verify_greedy(scores: torch.Tensor, draft: Draft, accepted: torch.Tensor | None = None) -> Verdict:
    """Accepts the longest prefix of arg-max tokens; the terminal token is the arg-max after it.

    Args:
        scores (`torch.Tensor` of shape `(B, K + 1, V)`): processed target scores; row `i` scores draft token `i`, and
            row `draft.lengths[b]` the bonus token. Rows beyond it mean nothing.
        draft (`Draft`): the judged draft; its `probs` play no part.
        accepted (`torch.LongTensor` of shape `(B,)`, *optional*): how many tokens [`keeps_greedy`] kept, where that
            has been found out place by place.

    Returns:
        `Verdict`: accepted lengths and terminal tokens.
    """
    choices = likeliest(scores)
    if not draft.tokens.shape[1]:
        terminal = choices[:, 0]
        return Verdict(torch.zeros_like(terminal), terminal)
    if accepted is None:
        accepted = accepted_prefix(choices[:, : draft.tokens.shape[1]] == draft.tokens, draft.lengths)
    return Verdict(accepted, take_row(choices, accepted))
