"""Are greedy texts those of plain `generate`, and if not, does rounding explain it?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..verification.greedy import near_ties


# Dot products that are summed in the dtype itself err like a random walk, by the root of their length in units in the
# last place: 128 for 16384 terms, wider than most models. For scores of 16 to 32 in float32 that is 2.4e-4 to 4.9e-4,
# about twice the 1e-4 to which each of two scores agrees between block and single-token forwards.
_WIDE_UNITS = 128


@dataclass(frozen=True)
class Divergence:
    """Where two texts part.

    Attributes:
        position (`int`): of the first token that differs, counted from 0 among new tokens.
        plain (`int`, *optional*): token of plain `generate`; `None` if its text has ended.
        assisted (`int`, *optional*): token of the assisted text; `None` if it has ended.
        margin (`float`, *optional*): how far the worse of the two tokens lies below the target's best score: the
            top-two margin where they are the two best. `None` if a text has ended.
        tie (`bool`): whether rounding may have decided between the two. If not, it is a fault.
    """

    position: int
    plain: int | None
    assisted: int | None
    margin: float | None
    tie: bool

    @property
    def kind(self) -> str:
        """`"numerical tie"` or `"fault"`."""
        return "numerical tie" if self.tie else "fault"


@dataclass(frozen=True)
class GreedySummary:
    """What comparing greedy texts has shown.

    Attributes:
        texts (`int`): texts compared, at least one.
        divergences (`tuple[Divergence, ...]`): one for each text that parts from plain `generate`'s.
    """

    texts: int
    divergences: tuple[Divergence, ...]

    @property
    def identical(self) -> int:
        """Texts that are plain `generate`'s to the last token."""
        return self.texts - len(self.divergences)

    @property
    def identity_rate(self) -> float:
        """Share of identical texts."""
        return self.identical / self.texts

    @property
    def faults(self) -> tuple[Divergence, ...]:
        """Divergences that rounding does not explain."""
        return tuple(divergence for divergence in self.divergences if not divergence.tie)


def first_difference(plain: Sequence[int], assisted: Sequence[int]) -> int | None:
    """Position of the first token that differs, or at which one of two texts has ended; `None` if they are equal.

    Args:
        plain (`Sequence[int]`): new tokens, without the padding behind the end.
        assisted (`Sequence[int]`): new tokens, without the padding behind the end.
    """
    for position, (one, other) in enumerate(zip(plain, assisted, strict=False)):
        if one != other:
            return position
    return None if len(plain) == len(assisted) else min(len(plain), len(assisted))


def compare_texts(
    plain: Sequence[int], assisted: Sequence[int], scores_at: Callable[[int], torch.Tensor], dtype: torch.dtype
) -> Divergence | None:
    """Where two texts part, and whether rounding explains it.

    Both tokens must lie so near the best score that rounding may have put either on top: in bfloat16 and float16
    within two units in the last place ([`~hf_exactassist.verification.greedy.near_ties`]), in float32 and float64
    within 128 epsilons of the best score. A text that ends where the other goes on is no tie.

    Args:
        plain (`Sequence[int]`): new tokens, without the padding behind the end.
        assisted (`Sequence[int]`): new tokens, without the padding behind the end.
        scores_at (`Callable[[int], torch.Tensor]`): the target's processed scores of shape `(V,)` for the token at a
            position, behind the tokens both texts have before it. Asked once, and only where two tokens differ.
        dtype (`torch.dtype`): what the target computes in; `torch.float16` where float32 products are made in TF32,
            which has as many digits.

    Returns:
        `Divergence`, *optional*: `None` if the texts are equal.

    Raises:
        ValueError: the scores are not one row that holds both tokens.
    """
    position = first_difference(plain, assisted)
    if position is None:
        return None
    if position >= min(len(plain), len(assisted)):
        one, other = (text[position] if position < len(text) else None for text in (plain, assisted))
        return Divergence(position, one, other, margin=None, tie=False)
    tokens = plain[position], assisted[position]
    scores = scores_at(position).detach().to("cpu", torch.float64)
    if scores.dim() != 1 or not 0 <= min(tokens) <= max(tokens) < len(scores):
        raise ValueError(f"Scores of shape `(V,)` must hold tokens {tokens}, got {tuple(scores.shape)}.")
    pair = torch.stack([scores.max(), scores[list(tokens)].min()])
    return Divergence(position, *tokens, margin=float(pair[0] - pair[1]), tie=_rounding_decides(pair, dtype))


def summarise(comparisons: Sequence[Divergence | None]) -> GreedySummary:
    """Counts comparisons of texts.

    Args:
        comparisons (`Sequence[Divergence | None]`): one for each prompt, as from [`compare_texts`].

    Raises:
        ValueError: nothing was compared.
    """
    if not comparisons:
        raise ValueError("No texts were compared.")
    return GreedySummary(len(comparisons), tuple(found for found in comparisons if found is not None))


def _rounding_decides(pair: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether the best score and another one, float64, may change places."""
    best, other = pair.tolist()
    if not math.isfinite(best - other):
        return False
    if dtype in (torch.bfloat16, torch.float16):
        return bool(near_ties(pair, dtype))
    # scores smaller than one are sums of terms that are not
    return best - other <= _WIDE_UNITS * torch.finfo(dtype).eps * max(abs(best), 1.0)
