"""Why acceptance is low: how target and draft distributions differ, place by place (contract 0x03B, 0x05E).

All functions take the target's probabilities `p` and the draft's `q`, both processed as they are judged, and look at
nothing else. Some patterns tell causes apart: little agreement on the likeliest token is a poor or misaligned drafter;
much of it and low acceptance are other sampling settings; an infinite divergence is a drafter that cuts off what the
target may say.
"""

from __future__ import annotations

import torch


# what float32 probabilities of a large vocabulary may lack of 1
_TOLERANCE = 1e-3


def total_variation(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Half the absolute difference of two distributions: how often a drafted token is rejected.

    Args:
        p (`torch.Tensor` of shape `(..., V)`): target probabilities.
        q (`torch.Tensor` of shape `(..., V)`): draft probabilities.

    Returns:
        `torch.Tensor` of shape `(...)`: float64, between 0 and 1.

    Raises:
        ValueError: shapes differ, or a row is no distribution.
    """
    p, q = _checked(p, q)
    return (p - q).abs().sum(dim=-1) / 2


def expected_acceptance(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """How often a token drawn from `q` is accepted where it is reached: the mass that both share, `1 - TV`.

    Args:
        p (`torch.Tensor` of shape `(..., V)`): target probabilities.
        q (`torch.Tensor` of shape `(..., V)`): draft probabilities; one-hot for tokens that are taken as given.

    Returns:
        `torch.Tensor` of shape `(...)`: float64, between 0 and 1.

    Raises:
        ValueError: shapes differ, or a row is no distribution.
    """
    p, q = _checked(p, q)
    return torch.minimum(p, q).sum(dim=-1)


def divergence(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Kullback-Leibler divergence of `q` from `p`, in nats.

    Args:
        p (`torch.Tensor` of shape `(..., V)`): target probabilities.
        q (`torch.Tensor` of shape `(..., V)`): draft probabilities.

    Returns:
        `torch.Tensor` of shape `(...)`: float64; infinite where `q` excludes a token of `p`.

    Raises:
        ValueError: shapes differ, or a row is no distribution.
    """
    p, q = _checked(p, q)
    # a token that `p` excludes counts for nothing, whatever `q` says
    return torch.where(p > 0, p * (p.log() - q.log()), 0.0).sum(dim=-1)


def same_top(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Whether both hold the same token likeliest; of equal ones, the first.

    Args:
        p (`torch.Tensor` of shape `(..., V)`): target probabilities.
        q (`torch.Tensor` of shape `(..., V)`): draft probabilities.

    Returns:
        `torch.BoolTensor` of shape `(...)`.

    Raises:
        ValueError: shapes differ, or a row is no distribution.
    """
    p, q = _checked(p, q)
    return p.argmax(dim=-1) == q.argmax(dim=-1)


def most_rejected(p: torch.Tensor, q: torch.Tensor, count: int = 10) -> list[tuple[int, float]]:
    """The tokens that are drafted in vain most often. With `p` and `q` exchanged: those that are drafted too seldom.

    Args:
        p (`torch.Tensor` of shape `(..., V)`): target probabilities.
        q (`torch.Tensor` of shape `(..., V)`): draft probabilities.
        count (`int`): tokens at most.

    Returns:
        `list[tuple[int, float]]`: tokens, and how often each is expected to be drafted and rejected at all these
        places together, most often first; of equal ones, in the order of the vocabulary.

    Raises:
        ValueError: shapes differ, or a row is no distribution.
    """
    p, q = _checked(p, q)
    rejected = (q - p).clamp_min(0).reshape(-1, p.shape[-1]).sum(dim=0)
    order = rejected.argsort(descending=True, stable=True)[:count].tolist()
    return [(token, float(rejected[token])) for token in order if rejected[token] > 0]


def _checked(p: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both in float64 and in one place."""
    if p.shape != q.shape or not p.dim():
        raise ValueError(f"`p` and `q` need the same shape `(..., V)`, got {tuple(p.shape)} and {tuple(q.shape)}.")
    p, q = p.double(), q.to(p.device).double()
    for name, rows in (("p", p), ("q", q)):
        # NaN passes neither
        if not bool((rows >= 0).all() and ((rows.sum(dim=-1) - 1).abs() <= _TOLERANCE).all()):
            raise ValueError(f"A row of `{name}` is no distribution: pass probabilities, not scores.")
    return p, q
