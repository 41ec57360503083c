"""The same by kind of prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .blocks import Block, Figure, Section, Table
from .charts import Dots, Series
from .ways import Way, measured, ways
from .words import at, number, share


def kinds(report: dict[str, Any], mode: dict[str, Any], anchor: str) -> Section | None:
    """Acceptance, tokens a round and speed-up by kind; `None` where there is but one kind."""
    found = measured(ways(report, mode))
    told = [*(at(report, "prompts", "kinds") or {})]
    for way in found:
        told += [*(way.at("acceptance", "by_kind") or {}), *(way.at("speed", "by_kind") or {})]
    names = list(dict.fromkeys(told))
    if len(names) < 2 or not found:
        return None

    def rate(way: Way, kind: str) -> float | None:
        return way.at("acceptance", "by_kind", kind, "rate")

    def progress(way: Way, kind: str) -> float | None:
        return way.at("acceptance", "by_kind", kind, "tokens_per_round")

    def speedup(way: Way, kind: str) -> float | None:
        return way.at("speed", "by_kind", kind)

    blocks: list[Block] = [
        Figure(
            _chart("Acceptance by kind", names, found, rate, shares=True, base=None),
            (
                _table("Accepted, by kind", names, found, rate, share),
                _table("Tokens a round, by kind", names, found, progress, number),
            ),
        ),
        Figure(
            _chart("Speed-up by kind", names, found, speedup, shares=False, base=1.0),
            (_table("Speed-up, by kind", names, found, speedup, number),),
        ),
    ]
    return Section(anchor, "By kind of prompt", tuple(blocks))


_Value = Callable[[Way, str], "float | None"]


def _table(
    caption: str, names: Sequence[str], found: Sequence[Way], value: _Value, written: Callable[[Any], str]
) -> Table:
    rows = tuple((way.label, *(written(value(way, kind)) for kind in names)) for way in found)
    return Table(caption, ("Way", *names), rows)


def _chart(
    title: str, names: Sequence[str], found: Sequence[Way], value: _Value, shares: bool, base: float | None
) -> Dots | None:
    series = []
    for way in found:
        values = [(float(place), value(way, kind)) for place, kind in enumerate(names)]
        points = tuple((place, one) for place, one in values if one is not None)
        if points:
            series.append(Series(way.label, way.style, points))
    return Dots(title, tuple(names), tuple(series), shares, base) if series else None
