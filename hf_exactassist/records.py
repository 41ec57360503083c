"""The words of a round as dataclasses: what is drafted, judged and committed.

*accepted* draft tokens are those kept by the target; the *recovered* token replaces the first rejected one; the
*bonus* token follows a fully accepted draft. Recovered and bonus tokens are both called *terminal*: every round ends
in one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch


@dataclass(frozen=True)
class Draft:
    """The tokens a drafter proposes for every row of one round.

    Attributes:
        tokens (`torch.LongTensor` of shape `(B, K)`): draft tokens, left-aligned; entries from `lengths[b]` on mean
            nothing.
        lengths (`tuple[int, ...]` of length `B`): how many tokens each row drafted, each at most `K`.
        probs (`torch.Tensor` of shape `(B, K, V)`, *optional*): the distributions the tokens were drawn from (q).
            `None` means a point-mass draft: the tokens are taken as given, and judging is exact however they were
            chosen.
    """

    tokens: torch.Tensor
    lengths: tuple[int, ...]
    probs: torch.Tensor | None = None

    @property
    def width(self) -> int:
        """The longest draft of the round."""
        return max(self.lengths, default=0)

    @staticmethod
    @functools.lru_cache(maxsize=16)
    def empty(rows: int, device: torch.device | str) -> Draft:
        """A draft of no tokens: the round then decodes one token, as plain decoding does."""
        return Draft(torch.zeros(rows, 0, dtype=torch.long, device=device), (0,) * rows)


@dataclass(frozen=True)
class Uniforms:
    """The random numbers one round is judged with, each in `[0, 1)`, float64.

    Attributes:
        accept (`torch.Tensor` of shape `(B, K)`): one per acceptance test.
        terminal (`torch.Tensor` of shape `(B, K + 1)`): one per place where the round may end; only the reached one is
            used.
    """

    accept: torch.Tensor
    terminal: torch.Tensor


@dataclass(frozen=True)
class Verdict:
    """What the target decided about a draft.

    Attributes:
        accepted (`torch.LongTensor` of shape `(B,)`): accepted draft tokens, before any stopping.
        terminal (`torch.LongTensor` of shape `(B,)`): the recovered or bonus token that ends the round.
    """

    accepted: torch.Tensor
    terminal: torch.Tensor


@dataclass(frozen=True)
class Commit:
    """One round's outcome, after stopping has cut it: what drafters and schedules learn from.

    Attributes:
        rows (`tuple[int, ...]`): original batch indices of the rows that took part.
        drafted (`tuple[int, ...]`): draft length of each row.
        accepted (`tuple[int, ...]`): accepted draft tokens of each row, before stopping.
        tokens (`tuple[tuple[int, ...], ...]`): the tokens published for each row.
        stops (`tuple[int | None, ...]`): length in columns at which a stopping criterion first held, `None` if none
            did.
        near_ties (`int`): published tokens whose choice hung on rounding in half precision.
    """

    rows: tuple[int, ...]
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]
    stops: tuple[int | None, ...]
    near_ties: int = field(default=0, kw_only=True)


class Spent(NamedTuple):
    """Random numbers that a row's published tokens have used, one count per stream (contract 0x06D).

    Numbers are keyed by position, so these counts do not choose them: they say how many decided something. Target
    draws of a round with a draft are its reached acceptance tests plus one terminal draw, or none if the round was
    stopped inside its draft; a round without a draft makes one ordinary draw. With shared noise every token is an
    ordinary draw.

    Attributes:
        draft (`int`): draws of draft tokens from q.
        accept (`int`): acceptance tests.
        terminal (`int`): draws of recovered and bonus tokens.
        ordinary (`int`): draws of tokens as plain sampling makes them.
    """

    draft: int = 0
    accept: int = 0
    terminal: int = 0
    ordinary: int = 0

    def plus(self, other: Spent) -> Spent:
        """The counts of both."""
        return Spent(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True)
class CallIdentity:
    """Everything that holds for a whole call; equal digests mean equal manifests.

    Attributes:
        digest (`str`): SHA-256 of the manifest's canonical JSON.
        manifest (`Mapping[str, Any]`): models, processors, settings, ready for JSON.
    """

    digest: str
    manifest: Mapping[str, Any] = field(compare=False, repr=False)


@dataclass(frozen=True)
class RowCoordinate:
    """Where one active row stands.

    Attributes:
        row (`int`): original batch index.
        prefix (`str`): SHA-256 of its tokens, padding left out.
        length (`int`): columns published.
        cached (`int`): columns with keys and values in the target's cache.
        position (`int`): logical position of its next token.
        spent (`Spent`): random numbers used so far.
    """

    row: int
    prefix: str
    length: int
    cached: int
    position: int
    spent: Spent


@dataclass(frozen=True)
class Coordinate:
    """The state in which a round's probabilities, tokens and cache rows mean something (contract 0x01A).

    Attributes:
        call (`CallIdentity`): what holds for the whole call.
        generation (`int`): changes of the published state so far.
        layout (`str`): `"replay"` or `"retained"`.
        rows (`tuple[RowCoordinate, ...]`): the active rows.
        ended (`tuple[tuple[int, str], ...]`): of the others, batch index and SHA-256 of the tokens.
    """

    call: CallIdentity
    generation: int
    layout: str
    rows: tuple[RowCoordinate, ...]
    ended: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Proposal:
    """A draft, bound to the state it was made for."""

    coordinate: Coordinate
    draft: Draft


@dataclass(frozen=True)
class Verification:
    """What the target said about a proposal, bound to the same state.

    Attributes:
        coordinate (`Coordinate`): the state.
        draft (`Draft`): the scored draft.
        outputs (`ModelOutput`): the target's outputs; row `j` of each belongs to the `j`-th token after the last
            published one.
        starts (`tuple[int, ...]`): slot of the first token each row read.
        read (`torch.LongTensor` of shape `(A, W)`): the tokens whose keys and values the call wrote from there on.
        frontier (`torch.LongTensor` of shape `(A,)`): the tokens whose keys and values stand at the place of the last
            published one.
    """

    coordinate: Coordinate
    draft: Draft
    outputs: Any
    starts: tuple[int, ...]
    read: torch.Tensor
    frontier: torch.Tensor


@dataclass(frozen=True)
class Processed:
    """What the processors made of a block. Tuples have one entry per active row.

    Attributes:
        logits (`torch.Tensor` of shape `(A, K + 1, V)`): float32.
        scores (`torch.Tensor` of shape `(A, K + 1, V)`): processed; zeros where nothing is to be judged.
        limits (`tuple[int, ...]`): places with scores, and so tokens that can be published.
        accepted (`tuple[int, ...]`, *optional*): kept draft tokens, where the block was gone through place by place.
        asked (`tuple[int, ...]`): columns up to which stopping criteria have been asked.
        stops (`tuple[int | None, ...]`): length in columns at which one of them first held.
    """

    logits: torch.Tensor
    scores: torch.Tensor
    limits: tuple[int, ...]
    accepted: tuple[int, ...] | None
    asked: tuple[int, ...]
    stops: tuple[int | None, ...]


@dataclass(frozen=True)
class RoundCommit(Commit):
    """One round, ready to be published (contract 0x06E). Tuples have one entry per row that takes part.

    Attributes:
        request_id (`str`): the call.
        round_id (`str`): the round within all calls.
        coordinate (`Coordinate`): the state the round starts from; its `generation` must still be the call's.
        terminal (`tuple[str, ...]`): `"recovered"`, `"bonus"`, or for rows cut inside their accepted tokens, which end
            in none, `"stop"`, or `"held"` where they wait for the other rows of the batch.
        committed_kv (`tuple[tuple[int, ...], ...]`): tokens whose keys and values become part of the cache.
        discarded_kv (`tuple[tuple[int, ...], ...]`): draft tokens whose keys and values are forgotten.
        spent_before (`tuple[Spent, ...]`): random numbers used up before the round.
        spent_after (`tuple[Spent, ...]`): and after it.
        processors_before (`str`): hash of the logits processors' state before the round.
        processors_after (`str`): and after it.
    """

    request_id: str
    round_id: str
    coordinate: Coordinate
    terminal: tuple[str, ...]
    committed_kv: tuple[tuple[int, ...], ...]
    discarded_kv: tuple[tuple[int, ...], ...]
    spent_before: tuple[Spent, ...]
    spent_after: tuple[Spent, ...]
    processors_before: str
    processors_after: str

    def __hash__(self) -> int:
        """Of its name: equal rounds have one, and the rest is long."""
        return hash(self.round_id)

    @property
    def expected_generation(self) -> int:
        """The generation the call must be in for this commit to be published."""
        return self.coordinate.generation

    @property
    def layout(self) -> str:
        """The frontier layout the round was made in."""
        return self.coordinate.layout
