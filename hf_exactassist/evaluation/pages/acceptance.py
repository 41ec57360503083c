"""How far drafts were accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .blocks import Block, Figure, Section, Table, Text
from .charts import Lines, Series
from .ways import Way, by_place, measured, ways
from .words import at, count, number, share


def acceptance(report: dict[str, Any], mode: dict[str, Any], anchor: str) -> Section | None:
    """By position, as survival, over the text; `None` where nothing was drafted."""
    found = [way for way in measured(ways(report, mode)) if way.at("acceptance")]
    if not found:
        return None
    told = (
        "Counted in the calls of the first repeat that were made once more with the acceptance log; where draft "
        "lengths follow the clock, these may have drafted otherwise than the timed calls. "
        "Rates count a position only where it was reached, all before it having been accepted. Survival and what is "
        "expected follow from them, as if every draft went that far."
    )
    blocks: list[Block] = [Text(told)]
    blocks += _figure(
        "Acceptance by position",
        found,
        "by_position",
        [
            by_place("Accepted where reached, by position", found, lambda way: _list(way, "by_position"), share),
            by_place("How often reached", found, lambda way: _list(way, "reached"), count, folded=True),
        ],
    )
    blocks += _figure(
        "Survival: accepted up to and with a position",
        found,
        "survival",
        [
            by_place("Share of drafts accepted so far", found, lambda way: _list(way, "survival"), share),
            by_place(
                "Share of rounds by accepted drafts",
                found,
                lambda way: _list(way, "prefix_law"),
                share,
                first=0,
                folded=True,
            ),
        ],
    )
    blocks.append(_counts(found))
    blocks += _over_text(found)
    return Section(anchor, "Acceptance", tuple(blocks))


def _list(way: Way, name: str) -> list[Any] | None:
    return way.at("acceptance", name)


def _figure(title: str, found: Sequence[Way], name: str, tables: Sequence[Table | None]) -> list[Block]:
    series = []
    for way in found:
        values = enumerate(_list(way, name) or [], start=1)
        points = tuple((float(place), value) for place, value in values if value is not None)
        if points:
            series.append(Series(way.label, way.style, points))
    shown = tuple(table for table in tables if table is not None)
    chart = Lines(title, "position in the draft", tuple(series), shares=True) if series else None
    return [Figure(chart, shown)] if shown else []


def _counts(found: Sequence[Way]) -> Table:
    columns = {
        "Rounds": ("rounds", count),
        "Rounds of rows": ("row_rounds", count),
        "Drafted": ("drafted", count),
        "Accepted": ("accepted", count),
        "Tokens": ("published", count),
        "Accepted a round, expected": ("expected_accepted", number),
        "Tokens a round, expected": ("expected_progress", number),
        "Tokens a round": ("tokens_per_round", number),
        "Tokens a forward of the target": ("tokens_per_target_forward", number),
    }
    rows = tuple(
        (way.label, *(written(way.at("acceptance", name)) for name, written in columns.values())) for way in found
    )
    return Table("Rounds and tokens", ("Way", *columns), rows)


def _over_text(found: Sequence[Way]) -> list[Block]:
    stretches = [
        {(one["from"], one["to"]): one["rate"] for one in _list(way, "over_text") or [] if at(one, "rate") is not None}
        for way in found
    ]
    places = sorted({place for one in stretches for place in one})
    if not places:
        return []
    rows = tuple(
        (way.label, *(share(one.get(place)) for place in places)) for way, one in zip(found, stretches, strict=True)
    )
    table = Table("Accepted, by place in the text", ("Way", *(f"{low}–{high - 1}" for low, high in places)), rows)
    series = tuple(
        Series(way.label, way.style, tuple(((low + high - 1) / 2, rate) for (low, high), rate in one.items()))
        for way, one in zip(found, stretches, strict=True)
        if one
    )
    return [Figure(Lines("Acceptance over the text", "place in the text, in tokens", series, shares=True), (table,))]
