"""One round as a record: made aside, checked against the state it starts from, published (contract 0x06A to 0x06E)."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ForeignRows, InvalidCommit
from ..records import Coordinate, Draft, RoundCommit, Spent
from .layout import RETAINED, check_block, draft_rows
from .rows import Rows


def layout_of_round(coordinate: Coordinate) -> str:
    """The layout a round's rows are in: the prompts' round finds a complete cache and its first row of scores."""
    return RETAINED if coordinate.generation == 0 else coordinate.layout


def stage(
    request_id: str,
    coordinate: Coordinate,
    frontiers: Sequence[int],
    draft: Draft,
    drafted: Sequence[Sequence[int]],
    starts: Sequence[int],
    frontiers_read: Sequence[int],
    read: Sequence[Sequence[int]],
    accepted: Sequence[int],
    kept: tuple[tuple[int, ...], ...],
    stops: tuple[int | None, ...],
    spent: Sequence[Spent],
    processors: tuple[str, str],
    near_ties: int = 0,
) -> RoundCommit:
    """Makes the record of a round; nothing is changed.

    Args:
        request_id (`str`): the call.
        coordinate (`Coordinate`): the state the round starts from.
        frontiers (`Sequence[int]`): last published token of each row.
        draft (`Draft`): the judged draft.
        drafted (`Sequence[Sequence[int]]`): its tokens per row.
        starts (`Sequence[int]`): first column each row of the target call read.
        frontiers_read (`Sequence[int]`): token at the last published place of each row, as the cache knows it.
        read (`Sequence[Sequence[int]]`): tokens it wrote from there on, as the cache knows them; filler at the end of
            rows with shorter drafts.
        accepted (`Sequence[int]`): accepted draft tokens of each row, before stopping.
        kept (`tuple`): the tokens each row publishes.
        stops (`tuple`): see [`~hf_exactassist.records.Commit`].
        spent (`Sequence[Spent]`): numbers used up by each row in this round.
        processors (`tuple[str, str]`): hashes of the processors' state before and after the round.
        near_ties (`int`): see [`~hf_exactassist.records.Commit`].

    Returns:
        `RoundCommit`: the record.

    Raises:
        BrokenRound: the target call's rows do not fit the tokens.
    """
    layout = layout_of_round(coordinate)
    offset = 0 if layout == RETAINED else 1
    committed, discarded, ends = [], [], []
    for i, row in enumerate(coordinate.rows):
        tokens = tuple(drafted[i])
        # what the call read besides drafts is not cut off: it may be one too many
        rows_read = tuple(read[i][: len(tokens) + len(read[i]) - draft.width])
        places = range(starts[i], starts[i] + len(rows_read))
        check_block(layout, frontiers[i], row.length, row.cached, tokens, places, rows_read)
        if frontiers_read[i] != frontiers[i]:
            raise ForeignRows(f"Keys and values of token {frontiers[i]} were made from token {frontiers_read[i]}.")
        own = draft_rows(rows_read, offset, tokens, frontiers[i])
        stay = len(kept[i]) - 1
        committed.append((*rows_read[:offset], *own[:stay]))
        discarded.append(own[stay:])
        ends.append(_end(len(kept[i]), accepted[i], len(tokens), stops[i] == row.length + len(kept[i])))
    before = tuple(row.spent for row in coordinate.rows)
    return RoundCommit(
        rows=tuple(row.row for row in coordinate.rows),
        drafted=draft.lengths,
        accepted=tuple(accepted),
        tokens=kept,
        stops=stops,
        request_id=request_id,
        round_id=f"{request_id}/{coordinate.generation}",
        coordinate=coordinate,
        terminal=tuple(ends),
        committed_kv=tuple(committed),
        discarded_kv=tuple(discarded),
        spent_before=before,
        spent_after=tuple(a.plus(b) for a, b in zip(before, spent, strict=True)),
        processors_before=processors[0],
        processors_after=processors[1],
        near_ties=near_ties,
    )


def _end(published: int, accepted: int, drafted: int, stopped: bool) -> str:
    """How a row's round ends."""
    if published <= accepted:
        return "stop" if stopped else "held"
    return "recovered" if accepted < drafted else "bonus"


_PER_ROW = (
    "drafted",
    "accepted",
    "tokens",
    "stops",
    "terminal",
    "committed_kv",
    "discarded_kv",
    "spent_before",
    "spent_after",
)


def validate(commit: RoundCommit, rows: Rows, request_id: str, processors: str) -> None:
    """Checks a record against the state it is to be published into (contract 0x06B, 0x06C, 0x06E).

    Args:
        commit (`RoundCommit`): the record; its coordinate is known to be the present one.
        rows (`Rows`): the rows of the call.
        request_id (`str`): the call.
        processors (`str`): hash of the processors' state.

    Raises:
        InvalidCommit: it contradicts itself or the state.
        ForeignRows: the cache would hold other tokens than the text.
    """

    def demand(holds: bool, what: str) -> None:
        if not holds:
            raise InvalidCommit(f"Round {commit.round_id} {what}: publish a commit as `stage` returned it.")

    demand(commit.request_id == request_id, "belongs to another call")
    demand(commit.round_id == f"{request_id}/{commit.expected_generation}", "has the number of another round")
    demand(commit.rows == rows.state.active, "has other rows than are active")
    lengths = {len(getattr(commit, name)) for name in _PER_ROW}
    demand(lengths == {len(commit.rows)}, "has another number of entries than of rows")
    demand(commit.processors_before == processors, "starts from another state of the logits processors")
    demand(commit.spent_before == tuple(rows.state.spent[row] for row in rows.active), "starts from other numbers")
    replayed = layout_of_round(commit.coordinate) != RETAINED
    for i, row in enumerate(commit.rows):
        tokens, drafted, accepted, end = commit.tokens[i], commit.drafted[i], commit.accepted[i], commit.terminal[i]
        spent = commit.spent_after[i]
        demand(0 <= accepted <= drafted, "accepts more than was drafted")
        demand(1 <= len(tokens) <= accepted + 1, "publishes nothing, or more than was accepted and one token")
        demand(len(tokens) <= rows.max_length - rows.lengths[row], "publishes beyond the row's budget")
        stop, length = commit.stops[i], rows.lengths[row]
        whole = len(tokens) > accepted or rows.in_step
        demand(whole or stop is not None, f"cuts row {row} without a stop")
        expected = _end(len(tokens), accepted, drafted, stop == length + len(tokens))
        demand(end == expected, f"ends row {row} in {end!r} where {expected!r} is due")
        met = stop is None or stop == rows.stops[row] or length < stop <= length + len(tokens)
        demand(met, f"stops row {row} at a length it does not pass in this round")
        demand(all(a >= b for a, b in zip(spent, commit.spent_before[i], strict=True)), "gives numbers back")
        if commit.committed_kv[i] != ((rows.state.frontiers[row],) if replayed else ()) + tokens[:-1]:
            raise ForeignRows(
                f"Row {row} would keep keys and values of {commit.committed_kv[i]} for a text going on with {tokens}."
            )
        rejected = drafted - (len(tokens) - 1)
        demand(len(commit.discarded_kv[i]) == rejected, f"keeps rejected keys and values in row {row}")
