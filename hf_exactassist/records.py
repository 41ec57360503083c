"""The words of a round as dataclasses: what is drafted, judged and committed.

*accepted* draft tokens are those kept by the target; the *recovered* token replaces the first rejected one; the
*bonus* token follows a fully accepted draft. Recovered and bonus tokens are both called *terminal*: every round ends
in one.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """One round's publication, after stopping has cut it.

    Attributes:
        rows (`tuple[int, ...]`): original batch indices of the rows that took part.
        drafted (`tuple[int, ...]`): draft length of each row.
        accepted (`tuple[int, ...]`): accepted draft tokens of each row, before stopping.
        tokens (`tuple[tuple[int, ...], ...]`): the tokens published for each row.
        stops (`tuple[int | None, ...]`): length in columns at which a stopping criterion first held, `None` if none
            did.
    """

    rows: tuple[int, ...]
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]
    stops: tuple[int | None, ...]
