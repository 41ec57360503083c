"""Scores to probabilities, and draws from them by inverse CDF or by exponential noise (contract 0x02A, 0x04J)."""

from __future__ import annotations

import numpy as np
import torch


# where a look at a tensor costs less than a pass over the vocabulary; an accelerator would have to be waited for
LOOKS_ARE_FREE = ("cpu",)
# laws over so many tokens are worth a look at whether only one weight in so many is not zero
_LARGE, _FEW = 2048, 8


def probabilities(scores: torch.Tensor) -> torch.Tensor:
    """Max-shifted softmax over the last axis, in float32 or better.

    Args:
        scores (`torch.Tensor` of shape `(..., V)`): processed scores; `-inf` marks tokens that cannot be drawn.

    Returns:
        `torch.Tensor` of shape `(..., V)`: probabilities; float64 for float64 scores, float32 otherwise. A row of
        `-inf` alone has no distribution and comes back as zeros; NaN and `+inf` scores make the row NaN.
    """
    scores = scores if scores.dtype == torch.float64 else scores.float()
    law = torch.softmax(scores, dim=-1)
    # a row without a law is NaN from its first place on, and seldom there
    if law.device.type in LOOKS_ARE_FREE and not bool(law[..., :1].isnan().any()):
        return law
    empty = scores.amax(dim=-1, keepdim=True) == -torch.inf
    return law.masked_fill_(empty, 0.0)


def online_probabilities(scores: torch.Tensor, block: int = 1024) -> torch.Tensor:
    """The same distribution by one pass over vocabulary blocks with a running maximum and sum (contract 0x04J).

    It exists as an independent arithmetic path to compare [`probabilities`] with.

    Args:
        scores (`torch.Tensor` of shape `(..., V)`): processed scores.
        block (`int`): tokens per block, at least 1.

    Returns:
        `torch.Tensor` of shape `(..., V)`: probabilities, dtypes as in [`probabilities`].

    Raises:
        ValueError: `block` is smaller than 1.
    """
    if block < 1:
        raise ValueError(f"`block` must be at least 1, got {block}")
    scores = scores if scores.dtype == torch.float64 else scores.float()
    top = scores.new_full((*scores.shape[:-1], 1), -torch.inf)
    total = torch.zeros_like(top)
    for part in scores.split(block, dim=-1):
        new_top = torch.maximum(top, part.amax(dim=-1, keepdim=True))
        shift = torch.where(new_top.isfinite(), new_top, torch.zeros_like(new_top))
        total = total * torch.exp(top - shift) + torch.exp(part - shift).sum(dim=-1, keepdim=True)
        top = new_top
    shift = torch.where(top.isfinite(), top, torch.zeros_like(top))
    return torch.exp(scores - shift) / total.clamp_min(torch.finfo(total.dtype).tiny)


def inverse_cdf(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The token whose interval of the cumulative weights contains the uniform.

    Args:
        weights (`torch.Tensor` of shape `(N, V)`): non-negative weights; they need not sum to one, but each row needs
            some mass.
        uniforms (`torch.Tensor` of shape `(N,)`): numbers in `[0, 1)`.

    Returns:
        `torch.LongTensor` of shape `(N,)`: tokens; one of weight zero is never returned.
    """
    if weights.device.type in LOOKS_ARE_FREE and weights.shape[-1] >= _LARGE:
        found = _among_few(weights, uniforms)
        if found is not None:
            return found
    cdf = weights.double().cumsum(dim=-1)
    total = cdf[:, -1:]
    # `u * total` may round up to `total`, whose interval does not exist
    threshold = torch.minimum(uniforms.double()[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cdf, threshold, right=True).squeeze(1)


def _among_few(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor | None:
    """What [`inverse_cdf`] returns where few weights are not zero, as after top-k: zeros add nothing to a sum.

    `None` where there are many, none or NaN.
    """
    tokens = []
    for row, uniform in zip(weights.detach().numpy(), uniforms.tolist(), strict=True):
        places = np.flatnonzero(row != 0)
        if not 0 < len(places) * _FEW < len(row):
            return None
        cdf = np.cumsum(row[places], dtype=np.float64)
        if np.isnan(cdf[-1]):
            return None
        threshold = min(uniform * cdf[-1], np.nextafter(cdf[-1], 0))
        tokens.append(int(places[np.searchsorted(cdf, threshold, side="right")]))
    return torch.tensor(tokens, device=weights.device)


def likeliest(scores: torch.Tensor) -> torch.Tensor:
    """The first token of the largest score, as `scores.argmax(dim=-1)`.

    Over a vocabulary torch takes twenty times as long for that on a CPU as NumPy does.

    Args:
        scores (`torch.Tensor` of shape `(..., V)`): scores; NaN counts as the largest.

    Returns:
        `torch.LongTensor` of shape `(...)`.
    """
    # NumPy has no bfloat16
    if scores.device.type not in LOOKS_ARE_FREE or scores.dtype not in (torch.float32, torch.float64):
        return scores.argmax(dim=-1)
    return torch.from_numpy(np.asarray(scores.detach().numpy().argmax(axis=-1)))


def choose(scores: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The token plain sampling draws from these scores with this noise.

    Args:
        scores (`torch.Tensor` of shape `(..., V)`): processed scores.
        noise (`torch.Tensor` of shape `(..., V)`): standard exponential numbers.

    Returns:
        `torch.LongTensor` of shape `(...)`. Rows without a law give token 0.
    """
    return likeliest(torch.softmax(scores, dim=-1) / noise)
