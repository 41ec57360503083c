"""Judging with noise that plain sampling would use: each token is fixed by its prefix and the noise (Gumbel coupling).

`argmax(p / e)` with standard exponential `e` follows `p`. A drafter that uses the same `e` agrees with the target with
probability at least `(1 - TV) / (1 + TV)` (Daliri et al. 2024); whatever it drafts, the published tokens are those of
plain sampling with that noise.
"""

from __future__ import annotations

import torch

from ..records import Draft, Verdict
from .coupling import accepted_prefix, take_row
from .distributions import choose


def keeps_shared(scores: torch.Tensor, tokens: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Whether each draft token is the one the noise fixes.

    Args:
        scores (`torch.Tensor` of shape `(..., V)`): processed target scores at the places of the tokens.
        tokens (`torch.LongTensor` of shape `(...)`): draft tokens.
        noise (`torch.Tensor` of shape `(..., V)`): the numbers of the same places.

    Returns:
        `torch.BoolTensor` of shape `(...)`.
    """
    return choose(scores, noise) == tokens


def verify_shared(
    scores: torch.Tensor, draft: Draft, noise: torch.Tensor, accepted: torch.Tensor | None = None
) -> Verdict:
    """Accepts drafts while they are the tokens the noise fixes; the terminal token is the next one it fixes.

    Args:
        scores (`torch.Tensor` of shape `(B, K + 1, V)`): processed target scores, as for greedy judging.
        draft (`Draft`): the judged draft; its `probs` play no part.
        noise (`torch.Tensor` of shape `(B, K + 1, V)`): the numbers of the same places.
        accepted (`torch.LongTensor` of shape `(B,)`, *optional*): how many tokens [`keeps_shared`] kept, where that
            has been found out place by place.

    Returns:
        `Verdict`: accepted lengths and terminal tokens; `V` where the reached scores leave no law to draw from.
    """
    if accepted is None:
        width = draft.tokens.shape[1]
        kept = keeps_shared(scores[:, :width], draft.tokens, noise[:, :width])
        accepted = accepted_prefix(kept, draft.lengths)
    reached = take_row(scores, accepted)
    lawless = reached.isnan().any(dim=-1) | (reached.amax(dim=-1) == -torch.inf)
    terminal = choose(reached, take_row(noise, accepted))
    return Verdict(accepted, terminal.masked_fill(lawless, scores.shape[-1]))
