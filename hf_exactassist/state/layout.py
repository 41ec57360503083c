"""The two frontier layouts: what a target call reads and which of its rows mean what (contract 0x01B, 0x04, 0x06C).

The last published token, the frontier, has no keys and values when it is published. Under the *replay* layout the
next round reads it together with the drafts: `K + 1` rows go in, whose scores are those of the `K` drafts and of the
token after them. Under the *retained* layout it is read beforehand: the cache is complete, its scores are kept as the
first row, and the round reads `K` rows. A row's scores speak about the token after the one it reads, so the two
families of rows are one place apart; tokens are compared here, not numbers of rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..errors import DuplicatedFrontier, ForeignRows, FrontierInDraft, MixedLayouts, ShiftedRows
from ..options import LAYOUTS


REPLAY, RETAINED = LAYOUTS


def cached_length(layout: str, length: int) -> int:
    """Tokens of a row of `length` tokens that have keys and values when a round begins."""
    return length if layout == RETAINED else length - 1


def block_inputs(layout: str, frontier: torch.Tensor, drafts: torch.Tensor) -> torch.Tensor:
    """The tokens a target call reads.

    Args:
        layout (`str`): `"replay"` or `"retained"`.
        frontier (`torch.LongTensor` of shape `(A,)`): last published tokens.
        drafts (`torch.LongTensor` of shape `(A, K)`): drafts.

    Returns:
        `torch.LongTensor` of shape `(A, K + 1)`, or `(A, K)` under the retained layout.
    """
    if layout == RETAINED:
        return drafts
    return torch.cat([frontier[:, None], drafts], dim=1) if drafts.shape[1] else frontier[:, None]


def scored_rows(layout: str, retained: torch.Tensor | None, logits: torch.Tensor | None, drafted: int) -> torch.Tensor:
    """Logits of the `K` drafts and of the token after them (contract 0x04B, 0x04D).

    Args:
        layout (`str`): `"replay"` or `"retained"`.
        retained (`torch.Tensor` of shape `(A, 1, V)`, *optional*): the retained layout's first row.
        logits (`torch.Tensor` of shape `(A, W, V)`, *optional*): what the target call returned.
        drafted (`int`): `K`.

    Returns:
        `torch.Tensor` of shape `(A, K + 1, V)`.

    Raises:
        MixedLayouts: a first row is missing under the retained layout, or there is one under the replay layout.
        ShiftedRows: the rows are not one per draft token and one more.
    """
    if (retained is not None) != (layout == RETAINED):
        have = "is" if retained is not None else "is no"
        raise MixedLayouts(f"There {have} retained first row under the {layout} layout: use the scorer's own verbs.")
    parts = [part for part in (retained, logits) if part is not None]
    rows = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
    if rows.shape[1] != drafted + 1:
        raise ShiftedRows(f"{drafted} drafts need {drafted + 1} rows of scores, got {rows.shape[1]}.")
    return rows


def check_block(
    layout: str,
    frontier: int,
    length: int,
    cached: int,
    draft: Sequence[int],
    places: Sequence[int],
    read: Sequence[int],
) -> None:
    """Checks one row of a target call by the identities of its tokens.

    Args:
        layout (`str`): `"replay"` or `"retained"`.
        frontier (`int`): the row's last published token.
        length (`int`): its published tokens.
        cached (`int`): how many of them have keys and values.
        draft (`Sequence[int]`): draft tokens.
        places (`Sequence[int]`): places in the text that the call wrote keys and values for.
        read (`Sequence[int]`): the tokens it made them from.

    Raises:
        DuplicatedFrontier: the frontier was read a second time.
        MixedLayouts: the cache is as the other layout leaves it.
        ShiftedRows: the call wrote to other places.
        ForeignRows: other tokens were read than were published and drafted.
    """
    offset = length - cached_length(layout, length)
    if cached == length and tuple(read) == (frontier, *draft):
        raise DuplicatedFrontier(
            f"Token {frontier} is in the cache and was read again, which shifts every score: read the draft alone, or "
            "crop the cache to before it."
        )
    if cached != length - offset:
        raise MixedLayouts(
            f"Under the {layout} layout {length - offset} of {length} published tokens have keys and values, here "
            f"{cached}: keep one layout for a whole call."
        )
    due = list(range(cached, length + len(draft)))
    if list(places) != due or len(read) != len(due):
        raise ShiftedRows(f"Keys and values for places {due} were due, and {list(places)} were written.")
    if offset and read[0] != frontier:
        raise ForeignRows(f"Keys and values of token {frontier} were made from token {read[0]}.")
    draft_rows(read, offset, draft, frontier)


def draft_rows(read: Sequence[int], offset: int, draft: Sequence[int], frontier: int) -> tuple[int, ...]:
    """The part of a call's keys and values from `offset` on, which must be the draft's.

    Raises:
        FrontierInDraft: it begins with the frontier.
        ForeignRows: it was made from other tokens.
    """
    rows = tuple(read[offset:])
    if rows != tuple(draft):
        if rows == (frontier, *draft):
            raise FrontierInDraft(
                f"The draft's keys and values begin with those of token {frontier}, published before."
            )
        raise ForeignRows(f"Keys and values kept for the draft {tuple(draft)} were made from {rows}.")
    return rows


def visibility(
    query_positions: torch.Tensor,
    key_positions: torch.Tensor,
    window: int | None = None,
    query_requests: torch.Tensor | None = None,
    key_requests: torch.Tensor | None = None,
) -> torch.Tensor:
    """Which keys a query may read: those of its own request up to its own position (contract 0x04C, 0x04E).

    Args:
        query_positions (`torch.LongTensor` of shape `(..., W)`): absolute positions of what is read.
        key_positions (`torch.LongTensor` of shape `(N,)`): absolute positions of all keys.
        window (`int`, *optional*): sliding window in tokens, the query's own included.
        query_requests (`torch.LongTensor` of shape `(..., W)`, *optional*): request of each query, where several
            requests are packed into one row.
        key_requests (`torch.LongTensor` of shape `(N,)`, *optional*): request of each key.

    Returns:
        `torch.BoolTensor` of shape `(..., W, N)`.
    """
    visible = key_positions <= query_positions[..., None]
    if window is not None:
        visible &= key_positions > query_positions[..., None] - window
    if query_requests is not None and key_requests is not None:
        visible &= key_requests == query_requests[..., None]
    return visible
