"""Is the law that of plain `generate`? Three tests that share a level and say what they could have found.

All p-values are Monte Carlo ones (Barnard 1963): how often chance alone does as much, the observed case counted along,
so that they are valid whatever the number of simulations, prompts and expected counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .bootstrap import MeanDifference, mean_difference, paired_gaps
from .power import smallest_found, tempered, threshold


# how often equal laws are said to differ, by any of the three tests
LEVEL = 0.05
ALPHA = LEVEL / 3
POWER = 0.9
# worlds in which a difference is or is not found; a power of 0.9 is known to 0.02
_WORLDS = 250
# the flattest and, inverted, the sharpest law tried
_MOST_TEMPERATURE = 8.0
# what probabilities in float32 may lack of 1
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Finding:
    """Outcome of a test of equal laws.

    Attributes:
        subject (`str`): what was compared.
        statistic (`float`): see the test.
        p_value (`float`): how often equal laws give a statistic like this or beyond.
        alpha (`float`): the p-value at or below which the laws are said to differ.
        smallest (`float`): the smallest difference, of the kind `alternative` says, that would have been found;
            infinite if none would.
        power (`float`): with this probability.
        alternative (`str`): the kind of difference, with `{}` for its size.
    """

    subject: str
    statistic: float
    p_value: float
    alpha: float
    smallest: float
    power: float
    alternative: str

    @property
    def differs(self) -> bool:
        """Whether the laws are said to differ."""
        return self.p_value <= self.alpha


@dataclass(frozen=True)
class LikelihoodFinding(Finding):
    """Outcome of [`likelihoods`].

    Attributes:
        difference (`MeanDifference`): nats per token, assisted less plain.
    """

    difference: MeanDifference


def level(ways: int) -> float:
    """The level of each test where several ways of decoding are tested, so that all tests together have that of one.

    Args:
        ways (`int`): so many.
    """
    return ALPHA / max(ways, 1)


def likelihoods(
    assisted: ArrayLike, plain: ArrayLike, alpha: float = ALPHA, simulations: int = 2000, seed: int = 0
) -> LikelihoodFinding:
    """Are assisted texts as likely under the target as plain ones? Sign flips of paired differences (Fisher 1935).

    Of two texts with one law either may be the assisted one, so every sign is as good as the other. The statistic is
    the mean difference. What could have been found: the same shift for every prompt, scattered as here.

    Args:
        assisted (`ArrayLike` of shape `(P,)`): mean log-likelihood per token of each prompt's assisted text, in nats,
            under the target's law.
        plain (`ArrayLike` of shape `(P,)`): the same for texts that plain `generate` has sampled independently.
        alpha (`float`): level of the test.
        simulations (`int`): sign patterns.
        seed (`int`): of the simulations.

    Returns:
        `LikelihoodFinding`: with an interval of level `1 - alpha`. `smallest` is infinite where all differences are
        the same, since nothing tells how they scatter.

    Raises:
        ValueError: fewer than two pairs, pairs that do not match, or too few simulations; a likelihood that is not
            finite, as of a text that the law excludes.
    """
    gaps = paired_gaps(assisted, plain)
    rng = np.random.default_rng(seed)
    signs = rng.choice([-1.0, 1.0], size=(simulations, len(gaps)))
    null = np.abs(signs @ gaps)
    threshold(null, alpha)
    centred = gaps - gaps.mean()
    spread = float(np.abs(centred).max())
    worlds = rng.choice(centred, size=(len(gaps), _WORLDS))
    flipped, drift = signs @ worlds, signs.sum(axis=1)[:, None]
    allowed = math.floor(alpha * (simulations + 1) + 1e-9) - 1

    def found(shift: float) -> float:
        shares = []
        for moved in (shift, -shift):
            sums = np.abs(worlds.sum(axis=0) + len(gaps) * moved)
            reached = _at_least(np.abs(flipped + moved * drift), sums).sum(axis=0)
            shares.append(float((reached <= allowed).mean()))
        return min(shares)

    # beyond that all differences have one sign, and more is no clearer
    smallest = smallest_found(found, 2 * spread if spread > 1e-12 * float(np.abs(gaps).max()) else 0.0, POWER)
    return LikelihoodFinding(
        subject="likelihoods",
        statistic=float(gaps.mean()),
        p_value=_p_value(null, abs(float(gaps.sum()))),
        alpha=alpha,
        smallest=smallest,
        power=POWER,
        alternative="a difference of {} nats per token",
        difference=mean_difference(assisted, plain, level=1 - alpha, seed=seed),
    )


def next_tokens(
    probs: ArrayLike, drawn: Sequence[ArrayLike], alpha: float = ALPHA, simulations: int = 2000, seed: int = 0
) -> Finding:
    """Do the tokens behind given prefixes follow their exact law? Goodness of fit, against samples from that law.

    Take prefixes behind which a draft was judged. The first token of a text comes from reading the prompt, without a
    judge, and says nothing about one; the second, behind the prompt and the text's own first token, does.

    Two measures take part, each in standard deviations of its own null law, and the statistic is the larger: the
    likelihood ratio G (Wilks 1938), summed over prefixes, which sees any difference where they have many draws, and
    the log-likelihood in either direction, which sees flatter and sharper laws where they have few; there G alone is
    blind to sharper ones. What could have been found: every law flattened to a temperature, or sharpened to its
    inverse.

    Args:
        probs (`ArrayLike` of shape `(N, V)`): the target's processed probabilities behind each prefix. Under top-k or
            top-p, those of a forward that rounds as the decoder's did: another may exclude other tokens.
        drawn (`Sequence[ArrayLike]` of length `N`): the assisted tokens behind each prefix, one or more, each of
            another text.
        alpha (`float`): level of the test.
        simulations (`int`): samples of all tokens.
        seed (`int`): of the simulations.

    Returns:
        `Finding`: of p-value 0 and infinite statistic if a token has probability 0. `smallest` is a temperature.

    Raises:
        ValueError: shapes do not match, a row is no distribution, a token is none, or too few simulations.
    """
    laws, tokens = _checked_laws(probs, drawn)
    rng = np.random.default_rng(seed)
    counts = [len(row) for row in tokens]
    null = _fits(laws, counts, simulations, int(rng.integers(2**63)))
    with np.errstate(divide="ignore"):
        observed = np.sum([_fit(row[None], law) for row, law in zip(tokens, laws, strict=True)], axis=0)
    impossible = not np.isfinite(observed).all()
    # the observed case belongs to the scale, so that it is one like the others if the laws are equal
    everything = null if impossible else np.concatenate([null, observed])
    centre, scale = everything.mean(axis=0), everything.std(axis=0)

    def farther(fits: np.ndarray) -> np.ndarray:
        scores = np.divide(fits - centre, scale, out=np.zeros_like(fits), where=scale > 1e-9)
        return np.maximum(scores[:, 0], np.abs(scores[:, 1]))

    ranks = farther(null)
    edge = threshold(ranks, alpha)
    worlds = int(rng.integers(2**63))

    def found(logarithm: float) -> float:
        both = (_fits(laws, counts, _WORLDS, worlds, math.exp(power)) for power in (logarithm, -logarithm))
        return min(_share_beyond(edge, farther(fits)) for fits in both)

    statistic = math.inf if impossible else float(farther(observed)[0])
    return Finding(
        subject="next tokens",
        statistic=statistic,
        p_value=0.0 if impossible else _p_value(ranks, statistic),
        alpha=alpha,
        smallest=math.exp(smallest_found(found, math.log(_MOST_TEMPERATURE), POWER)),
        power=POWER,
        alternative="laws flattened to temperature {} or sharpened to its inverse",
    )


def lengths(
    assisted: ArrayLike, plain: ArrayLike, alpha: float = ALPHA, simulations: int = 2000, seed: int = 0
) -> Finding:
    """Do texts end where plain ones do? Kolmogorov-Smirnov distance, texts exchanged within each prompt.

    What could have been found: a share of the assisted texts broken off, each at any of its tokens.

    Args:
        assisted (`ArrayLike` of shape `(P, S)`): new tokens of the texts of each prompt, at least 1.
        plain (`ArrayLike` of shape `(P, T)`): the same for texts that plain `generate` has sampled independently.
        alpha (`float`): level of the test.
        simulations (`int`): exchanges.
        seed (`int`): of the simulations.

    Raises:
        ValueError: shapes do not match, a length is not a whole number above 0, or too few simulations.
    """
    first, second = _checked_lengths(assisted, plain)
    rng = np.random.default_rng(seed)
    texts, own = np.concatenate([first, second], axis=1), first.shape[1]

    def exchanged(count: int) -> np.ndarray:
        return rng.permuted(np.repeat(texts[None], count, axis=0), axis=-1)

    null = _distances(exchanged(simulations), own)
    edge = threshold(null, alpha)
    worlds = exchanged(_WORLDS)
    place, luck = rng.random(worlds.shape), rng.random(worlds.shape)
    luck[..., own:] = 1.0
    broken = np.floor(place * worlds).astype(np.int64) + 1

    def found(share: float) -> float:
        # the edge is that of these texts: breaking some off moves it little
        return _share_beyond(edge, _distances(np.where(luck < share, broken, worlds), own))

    statistic = float(_distances(texts[None], own)[0])
    return Finding(
        subject="lengths",
        statistic=statistic,
        p_value=_p_value(null, statistic),
        alpha=alpha,
        smallest=smallest_found(found, 1.0, POWER),
        power=POWER,
        alternative="a share of {} of the texts broken off",
    )


def _at_least(null: np.ndarray | float, statistic: np.ndarray | float) -> np.ndarray:
    """Sums in another order may differ in the last digits, and are then the same."""
    return np.asarray(null >= statistic - 1e-9 * np.abs(statistic))


def _share_beyond(edge: float, statistics: np.ndarray) -> float:
    return float(1 - _at_least(edge, statistics).mean())


def _p_value(null: np.ndarray, statistic: float) -> float:
    return float(1 + _at_least(null, statistic).sum()) / (len(null) + 1)


def _fits(laws: np.ndarray, counts: Sequence[int], samples: int, seed: int, temperature: float = 1.0) -> np.ndarray:
    """[`_fit`] of samples from `laws` at a temperature, summed over prefixes: `(samples, 2)`."""
    rng = np.random.default_rng(seed)
    total = np.zeros((samples, 2))
    for law, count in zip(laws, counts, strict=True):
        edges = tempered(law, temperature).cumsum()
        # to the right of equal edges: tokens of probability 0 are never drawn
        tokens = (edges / edges[-1]).searchsorted(rng.random((samples, count)), side="right")
        total += _fit(tokens, law)
    return total


def _fit(tokens: np.ndarray, law: np.ndarray) -> np.ndarray:
    """G of a prefix and its log-likelihood, for samples `(R, S)` under a law `(V,)`: `(R, 2)`."""
    draws = tokens.shape[1]
    likelihood = np.log(law[tokens]).sum(axis=1)
    ordered = np.sort(tokens, axis=1)
    place = np.broadcast_to(np.arange(draws), ordered.shape)
    first = np.concatenate([np.ones((len(tokens), 1), bool), ordered[:, 1:] != ordered[:, :-1]], axis=1)
    nth = place - np.maximum.accumulate(np.where(first, place, 0), axis=1)
    # n log n of a token drawn n times is the sum of what each draw of it adds
    entropy = np.arange(draws + 1) * np.log(np.maximum(np.arange(draws + 1), 1))
    ratio = 2 * (np.diff(entropy)[nth].sum(axis=1) - likelihood - draws * math.log(draws))
    return np.stack([ratio, likelihood], axis=1)


def _distances(texts: np.ndarray, own: int) -> np.ndarray:
    """Largest gap between two empirical distributions: of texts `(R, P, S + T)`, the first `own` against the rest."""
    count, most = len(texts), int(texts.max()) + 1
    shift = np.arange(count)[:, None] * most

    def reached(part: np.ndarray) -> np.ndarray:
        flat = part.reshape(count, -1)
        counts = np.bincount((flat + shift).ravel(), minlength=count * most).reshape(count, most)
        shares: np.ndarray = counts.cumsum(axis=1) / flat.shape[1]
        return shares

    gaps: np.ndarray = np.abs(reached(texts[..., :own]) - reached(texts[..., own:])).max(axis=1)
    return gaps


def _checked_laws(probs: ArrayLike, drawn: Sequence[ArrayLike]) -> tuple[np.ndarray, list[np.ndarray]]:
    laws, tokens = np.asarray(probs, dtype=np.float64), [np.asarray(row) for row in drawn]
    if laws.ndim != 2 or len(laws) != len(tokens) or not len(laws):
        raise ValueError(f"`(N, V)` probabilities and tokens for each row: got {laws.shape} and {len(tokens)}.")
    # NaN passes neither
    if not ((laws >= 0).all() and (np.abs(laws.sum(axis=1) - 1) <= _TOLERANCE).all()):
        raise ValueError("A row of `probs` is no distribution: pass probabilities, not scores.")
    for row in tokens:
        if row.ndim != 1 or not row.size or not np.issubdtype(row.dtype, np.integer):
            raise ValueError(f"Each row of `drawn` holds one token or more, got {row.tolist()}.")
        if row.min() < 0 or row.max() >= laws.shape[1]:
            raise ValueError(f"`drawn` holds something that is none of {laws.shape[1]} tokens.")
    return laws / laws.sum(axis=1, keepdims=True), tokens


def _checked_lengths(assisted: ArrayLike, plain: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    first, second = np.asarray(assisted), np.asarray(plain)
    if first.ndim != 2 or second.ndim != 2 or len(first) != len(second) or not first.size or not second.size:
        raise ValueError(f"`(P, S)` and `(P, T)` lengths: got {first.shape} and {second.shape}.")
    if not all(np.issubdtype(part.dtype, np.integer) and part.min() > 0 for part in (first, second)):
        raise ValueError("Lengths are whole numbers above 0.")
    return first.astype(np.int64), second.astype(np.int64)
