"""An exact oracle for judges: the law of speculative decoding with every random choice enumerated (contract 0x04H).

Target and drafter are scripted laws on tiny vocabularies. The judge under test is called as shipped and its arithmetic
is not known here: bisection finds the numbers at which its verdict changes, and the length of an interval of noise is
the probability of what happens in it. A law found so is exact to about `1e-15`; no sampling takes part.

A judge must answer to its noise in one direction: small acceptance numbers keep a draft token, large ones reject it,
each independently of the others; the terminal token does not decrease with its number, as inverse CDF gives it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import torch

from ..records import Draft, Uniforms, Verdict
from .coupling import verify_sampled


Tokens = tuple[int, ...]
Law = dict[Tokens, float]
Conditional = Callable[[Tokens], Sequence[float] | torch.Tensor]
Judge = Callable[[torch.Tensor, Draft, Uniforms], Verdict]
Rows = Callable[[Tokens], torch.Tensor]

# halvings of [0, 1): edges come out with the resolution of the float64 uniforms themselves
BISECTIONS = 53
# where an interval found is looked at again, and the probability below which it is too narrow for that
PROBES, NARROW = (0.5, 2**-9, 1 - 2**-9), 2**-40


@dataclass(frozen=True)
class PointMass:
    """A drafter whose tokens are taken as given and judged with `Draft.probs = None`.

    Attributes:
        token (`Callable[[Tokens], int]`): the token drafted after a prefix.
    """

    token: Callable[[Tokens], int]


Drafts = Conditional | PointMass


def total_variation(a: Law, b: Law) -> float:
    """Half the summed difference of two laws; sequences that a law leaves out have probability 0 in it (0x03B)."""
    return sum(abs(a.get(tokens, 0.0) - b.get(tokens, 0.0)) for tokens in a.keys() | b.keys()) / 2


def target_law(p: Conditional, horizon: int, eos: int | None = None) -> Law:
    """The law of ordinary decoding, by the chain rule (0x02).

    Args:
        p (`Conditional`): target probabilities of shape `(V,)` after a prefix.
        horizon (`int`): tokens to decode.
        eos (`int`, *optional*): a sequence ends with this token, and is then shorter than `horizon`.

    Returns:
        `Law`: probability of every possible sequence.

    Raises:
        ValueError: `p` returns something that is not a probability row.
    """
    return _extended({(): 1.0}, _rows(p, "p"), horizon, eos)


def round_law(p: Conditional, q: Drafts, k: int, horizon: int, judge: Judge = verify_sampled) -> Law:
    """The law of one speculative round, completed to the horizon by ordinary target transitions (0x03F, 0x04H).

    Args:
        p (`Conditional`): target probabilities of shape `(V,)` after a prefix.
        q (`Conditional` or `PointMass`): draft probabilities of shape `(V,)` after a prefix, or a point-mass drafter.
        k (`int`): tokens drafted.
        horizon (`int`): tokens decoded in all, at least `k + 1`.
        judge (`Judge`): the judge to enumerate.

    Returns:
        `Law`: probability of every possible sequence of `horizon` tokens; equals [`target_law`] for an exact judge.

    Raises:
        ValueError: `horizon` cannot hold a round, a row is no probability row, or the judge cannot be enumerated.
    """
    if not 0 <= k < horizon:
        raise ValueError(f"a round of `k={k}` drafts publishes up to {k + 1} tokens; `horizon={horizon}` is too short")
    rows = _rows(p, "p")
    return _extended(_rounds(rows, q, k, [()], judge)[()], rows, horizon)


def decode_law(
    p: Conditional, q: Drafts, k: int, horizon: int, eos: int | None = None, judge: Judge = verify_sampled
) -> Law:
    """The law of a whole decode by successive rounds, each with fresh noise.

    Near the horizon a round drafts only as many tokens as leave room for its terminal token. A round is cut at the
    first `eos`; nothing after it is published (0x06).

    Args:
        p (`Conditional`): target probabilities of shape `(V,)` after a prefix, also one that runs past `eos`.
        q (`Conditional` or `PointMass`): draft probabilities of shape `(V,)` after a prefix, or a point-mass drafter.
        k (`int`): tokens drafted per round.
        horizon (`int`): the most tokens decoded.
        eos (`int`, *optional*): the token that ends a sequence.
        judge (`Judge`): the judge to enumerate.

    Returns:
        `Law`: probability of every possible sequence; equals [`target_law`] for an exact judge.

    Raises:
        ValueError: `k` is negative, a row is no probability row, or the judge cannot be enumerated.
    """
    if k < 0:
        raise ValueError(f"`k` must not be negative, got {k}")
    rows = _rows(p, "p")
    law: Law = defaultdict(float, {(): 1.0})
    for length in range(horizon):
        alive = [tokens for tokens in law if len(tokens) == length and eos not in tokens]
        for prefix, published in _rounds(rows, q, min(k, horizon - length - 1), alive, judge).items():
            reached = law.pop(prefix)
            for tokens, mass in published.items():
                cut = tokens.index(eos) + 1 if eos in tokens else len(tokens)
                law[prefix + tokens[:cut]] += reached * mass
    return dict(law)


def _rows(law: Conditional, name: str) -> Rows:
    """`law` with float64 rows of shape `(V,)`, checked and remembered."""

    @cache
    def row(prefix: Tokens) -> torch.Tensor:
        probs = torch.as_tensor(law(prefix), dtype=torch.float64, device="cpu")
        if probs.ndim != 1 or not (probs >= 0).all() or abs(probs.sum().item() - 1) > 1e-9:
            raise ValueError(f"`{name}` after {prefix} is not a probability row: {probs.tolist()}")
        return probs

    return row


def _extended(law: Law, p: Rows, horizon: int, eos: int | None = None) -> Law:
    """`law` carried on to `horizon` tokens by ordinary target transitions."""
    done: Law = defaultdict(float)
    while law:
        longer: Law = defaultdict(float)
        for tokens, mass in law.items():
            if len(tokens) == horizon or eos in tokens[-1:]:
                done[tokens] += mass
                continue
            for token, weight in enumerate(p(tokens).tolist()):
                if weight > 0:
                    longer[tokens + (token,)] += mass * weight
        law = longer
    return dict(done)


def _rounds(p: Rows, q: Drafts, k: int, prefixes: Sequence[Tokens], judge: Judge) -> dict[Tokens, Law]:
    """The law of what one round publishes after each prefix; all rounds are judged as one batch."""
    if not prefixes:
        return {}
    vocabulary = len(p(prefixes[0]))
    certain = torch.eye(vocabulary, dtype=torch.float64, device="cpu")
    proposals = _rows((lambda prefix: certain[q.token(prefix)]) if isinstance(q, PointMass) else q, "q")
    branches = []
    for prefix in prefixes:
        paths = _extended({prefix: 1.0}, proposals, len(prefix) + k)
        branches += [(prefix, path[len(prefix) :], mass) for path, mass in paths.items()]
    tokens = torch.tensor([path for _, path, _ in branches], dtype=torch.long, device="cpu").reshape(len(branches), k)
    scores = torch.stack([p(prefix + path[:i]) for prefix, path, _ in branches for i in range(k + 1)]).log()
    probs = None
    if k and not isinstance(q, PointMass):
        probs = torch.stack([proposals(prefix + path[:i]) for prefix, path, _ in branches for i in range(k)])
        if probs.shape[1] != vocabulary:
            raise ValueError(f"`p` speaks about {vocabulary} tokens and `q` about {probs.shape[1]}")
        probs = probs.reshape(-1, k, vocabulary)
    batch = _Batch(judge, scores.reshape(-1, k + 1, vocabulary), tokens, probs)
    laws: dict[Tokens, Law] = {prefix: defaultdict(float) for prefix in prefixes}
    for row, mass, accepted, terminal in batch.outcomes():
        prefix, path, drafted = branches[row]
        laws[prefix][path[:accepted] + (terminal,)] += drafted * mass
    return laws


def _edges(holds: Callable[[torch.Tensor], torch.Tensor], count: int) -> torch.Tensor:
    """Where in `[0, 1]` each of `count` predicates stops to hold; each holds below its edge and not above it."""
    low, high = (
        torch.zeros(count, dtype=torch.float64, device="cpu"),
        torch.ones(count, dtype=torch.float64, device="cpu"),
    )
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        held = holds(middle)
        low, high = torch.where(held, middle, low), torch.where(held, high, middle)
    # a predicate that never failed holds to the end
    return torch.where(high < 1, low, high)


@dataclass(frozen=True)
class _Batch:
    """Draft branches `(R, ...)` whose verdicts are enumerated over the noise."""

    judge: Judge
    scores: torch.Tensor
    tokens: torch.Tensor
    probs: torch.Tensor | None

    def verdict(self, rows: torch.Tensor, accept: torch.Tensor, terminal: torch.Tensor) -> Verdict:
        """Judges `rows` `(N,)` with noise `(N, K)` and `(N,)`."""
        k = self.tokens.shape[1]
        draft = Draft(self.tokens[rows], (k,) * len(rows), None if self.probs is None else self.probs[rows])
        # one round draws one terminal token: every place where it may end can be given the same number
        return self.judge(self.scores[rows], draft, Uniforms(accept, terminal[:, None].expand(-1, k + 1)))

    def outcomes(self) -> Iterable[tuple[int, float, int, int]]:
        """Every `(row, probability given its draft, accepted, terminal)`."""
        rows, low, high = self.acceptance_boxes()
        last = self.scores.shape[-1] - 1
        repeat = torch.arange(len(rows), device="cpu").repeat_interleave(last)
        token = torch.arange(last, device="cpu").repeat(len(rows))
        accept = ((low + high) / 2)[repeat]
        edges = _edges(lambda u: self.verdict(rows[repeat], accept, u).terminal <= token, len(repeat))
        outer = torch.tensor([0.0, 1.0], dtype=torch.float64, device="cpu").expand(len(rows), 2)
        edges = torch.cat([outer[:, :1], edges.reshape(len(rows), last), outer[:, 1:]], dim=1)

        cell, token = (edges.diff(dim=1) > 0).nonzero(as_tuple=True)
        rows, low, high, start, end = rows[cell], low[cell], high[cell], edges[cell, token], edges[cell, token + 1]
        mass = (high - low).prod(dim=1) * (end - start)
        probes = [self.verdict(rows, torch.lerp(low, high, at), torch.lerp(start, end, at)) for at in PROBES]
        accepted = probes[0].accepted
        astray = [(probe.accepted != accepted) | (probe.terminal != token) for probe in probes]
        if (torch.stack(astray).any(dim=0) & (mass > NARROW)).any():
            raise ValueError("the judge does not answer to its noise in one direction: it cannot be enumerated")
        return zip(rows.tolist(), mass.tolist(), accepted.tolist(), token.tolist(), strict=True)

    def acceptance_boxes(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The boxes `(N, K)` of acceptance noise in which every draft token is either kept or not: row, low, high."""
        count, k = self.tokens.shape
        if not k:
            return (
                torch.arange(count, device="cpu"),
                torch.zeros(count, 0, device="cpu").double(),
                torch.ones(count, 0, device="cpu").double(),
            )
        half = torch.full((count * k,), 0.5, dtype=torch.float64, device="cpu")
        rows = torch.arange(count, device="cpu").repeat_interleave(k)
        place = torch.eye(k, dtype=torch.float64, device="cpu").repeat(count, 1)
        longest = self.verdict(rows, torch.zeros_like(place), half).accepted
        edges = _edges(lambda u: self.verdict(rows, place * u[:, None], half).accepted == longest, count * k)
        kept, edges = torch.tensor(list(product((True, False), repeat=k)), device="cpu"), edges.reshape(count, 1, k)
        low, high = torch.where(kept, 0.0, edges), torch.where(kept, edges, 1.0)
        possible = (high > low).all(dim=-1)
        return possible.nonzero()[:, 0], low[possible], high[possible]
