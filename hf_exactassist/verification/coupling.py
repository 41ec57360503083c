"""Maximal coupling of target and draft (Leviathan et al. 2023, Chen et al. 2023; contract 0x03).

A draft token `d ~ q` is kept when `u * q(d) < p(d)`; at the first rejection the round ends in a token drawn from the
residual `max(p - q, 0)`; after a fully accepted draft it ends in a bonus token drawn from `p`. Either way the
published tokens follow `p`. Without `q` the draft is a point mass: keep `d` with probability `p(d)`, else draw from
`p` without `d`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..records import Draft, Uniforms, Verdict
from .distributions import inverse_cdf, probabilities


def accepts(p: torch.Tensor, q: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Whether each draft token is kept: strictly `u * q < p`, so that one of target probability 0 never is (0x03A).

    Args:
        p (`torch.Tensor`): target probabilities of the draft tokens, any shape.
        q (`torch.Tensor`): draft probabilities of the same tokens; 1 for point masses.
        uniforms (`torch.Tensor`): numbers in `[0, 1)`.

    Returns:
        `torch.BoolTensor`: of the same shape. Compared in float64, where a uniform cannot round up to 1.
    """
    return uniforms.double() * q.double() < p.double()


def residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Weights of the recovered token: `max(p - q, 0)`, or `p` where nothing is left of it (0x03C, 0x03D).

    An empty residual means `p` and `q` agree up to rounding: a rejection then has probability 0 in exact arithmetic,
    and the target's own law is the answer that keeps every token reachable.

    Args:
        p (`torch.Tensor` of shape `(N, V)`): target probabilities.
        q (`torch.Tensor` of shape `(N, V)`): draft probabilities.

    Returns:
        `torch.Tensor` of shape `(N, V)`: unnormalised weights.
    """
    left = (p - q).clamp_min(0)
    return torch.where(left.sum(dim=-1, keepdim=True) > 0, left, p)


def accepted_prefix(kept: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """Length of the run of kept tokens at the start of each row: the first rejection ends the round (0x03G).

    Args:
        kept (`torch.BoolTensor` of shape `(B, K)`): per-token decisions.
        lengths (`Sequence[int]` of length `B`): draft lengths; later entries are ignored.

    Returns:
        `torch.LongTensor` of shape `(B,)`.
    """
    if not kept.shape[1]:
        return torch.zeros(len(kept), dtype=torch.long, device=kept.device)
    if min(lengths, default=0) < kept.shape[1]:
        places = torch.arange(kept.shape[1], device=kept.device)
        kept = kept & (places < torch.tensor(lengths, device=kept.device)[:, None])
    return kept.cumprod(dim=1).sum(dim=1)


def take_row(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """`table[b, index[b]]` for every row `b`."""
    starts = torch.arange(0, table.shape[0] * table.shape[1], table.shape[1], device=table.device)
    return table.flatten(0, 1).index_select(0, starts + index)


def keeps(
    scores: torch.Tensor, tokens: torch.Tensor, probs: torch.Tensor | None, uniforms: torch.Tensor
) -> torch.Tensor:
    """Whether each draft token passes its acceptance test.

    One that its own law gives no probability was not drawn, as where processors left the drafter nothing to draw: it
    is not kept, and the target's own law takes its place.

    Args:
        scores (`torch.Tensor` of shape `(..., V)`): processed target scores at the places of the tokens.
        tokens (`torch.LongTensor` of shape `(...)`): draft tokens.
        probs (`torch.Tensor` of shape `(..., V)`, *optional*): what they were drawn from; `None` for point masses.
        uniforms (`torch.Tensor` of shape `(...)`): numbers in `[0, 1)`.

    Returns:
        `torch.BoolTensor` of shape `(...)`.
    """
    index = tokens[..., None]
    p = probabilities(scores).gather(-1, index).squeeze(-1)
    if probs is None:
        return accepts(p, torch.ones_like(p), uniforms)
    q = probs.gather(-1, index).squeeze(-1)
    return accepts(p, q, uniforms) & (q > 0)


def verify_sampled(
    scores: torch.Tensor, draft: Draft, uniforms: Uniforms, accepted: torch.Tensor | None = None
) -> Verdict:
    """Judges a draft so that the published tokens have exactly the target's law.

    Args:
        scores (`torch.Tensor` of shape `(B, K + 1, V)`): processed target scores; row `i` scores draft token `i`, and
            row `draft.lengths[b]` the bonus token. Rows beyond it mean nothing.
        draft (`Draft`): the judged draft, with `probs` of shape `(B, K, V)` or `None` for point masses.
        uniforms (`Uniforms`): the noise; pure function of it.
        accepted (`torch.LongTensor` of shape `(B,)`, *optional*): how many tokens [`keeps`] kept, where that has been
            found out place by place.

    Returns:
        `Verdict`: accepted lengths and terminal tokens. A row whose reached scores hold NaN or no finite value has no
        law to draw from; its terminal "token" is `V`, which the caller must refuse.
    """
    tokens, width = draft.tokens, draft.tokens.shape[1]
    lengths = torch.tensor(draft.lengths, device=tokens.device)
    if min(draft.lengths, default=0) < width:
        # entries beyond a row's length mean nothing, not even a token
        tokens = tokens.masked_fill(torch.arange(width, device=tokens.device) >= lengths[:, None], 0)
    if accepted is None:
        accepted = accepted_prefix(keeps(scores[:, :width], tokens, draft.probs, uniforms.accept), draft.lengths)
    weights = probabilities(take_row(scores, accepted))
    rejected = accepted < lengths
    if width:
        at = accepted.clamp_max(width - 1)
        if draft.probs is None:
            q = torch.zeros_like(weights).scatter_(1, take_row(tokens, at)[:, None], 1.0)
        else:
            q = take_row(draft.probs, at)
        weights = torch.where(rejected[:, None], residual(weights, q), weights)
    return Verdict(accepted, inverse_cdf(weights, take_row(uniforms.terminal, accepted)))
