"""What drafting brought, what it was expected to bring, and where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...options import LAYOUTS
from ..plan import MAXIMAL
from .blocks import Block, Figure, Section, Table, Text
from .charts import Bars, Lines, Series
from .overview import PARTS
from .ways import Way, drafter_names, measured, ways
from .words import NOTHING, at, milliseconds, number, share, span


_CLOCKS = {"cpu": "processor time", "wall": "wall time"}


def speed(report: dict[str, Any], mode: dict[str, Any], anchor: str) -> Section | None:
    """Speed-up against draft length, and time split; `None` where nothing was timed."""
    found = [way for way in measured(ways(report, mode)) if way.at("speed")]
    blocks: list[Block] = []
    for model in at(mode, "models") or []:
        blocks += _against_length(model, found, drafter_names(report))
    blocks += _times(found)
    if not blocks:
        return None
    clocks = dict.fromkeys(_CLOCKS.get(clock, clock) for way in found if (clock := way.at("speed", "clock")))
    told = [Text(f"Measured in {' and '.join(clocks)}. An interval is a paired bootstrap's over batches.")]
    return Section(anchor, "Speed", (*(told if clocks else []), *blocks))


def _against_length(model: dict[str, Any], found: Sequence[Way], drafters: dict[str, str]) -> list[Block]:
    alike = ("drafter", "coupling", "layout")
    own = [way for way in found if all(way.at(name) == at(model, name) for name in alike)]
    intervals = {way.at("num_assistant_tokens"): way.interval for way in own}
    reached = {
        one["num_assistant_tokens"]: one["speedup"]
        for one in at(model, "measured") or []
        if at(one, "speedup") is not None and at(one, "num_assistant_tokens") is not None
    }
    predicted = dict(zip(at(model, "lengths") or [], at(model, "speedup") or [], strict=False))
    predicted = {length: value for length, value in predicted.items() if value is not None}
    default = at(model, "default")
    if not reached and not predicted and default is None:
        return []
    name = drafters.get(at(model, "drafter") or "", at(model, "drafter") or "?")
    unusual = [one for one in (at(model, "coupling"), at(model, "layout")) if one not in (None, MAXIMAL, LAYOUTS[0])]
    name = ", ".join([name, *(one.replace("_", " ") for one in unusual)])
    rows = [
        (str(length), number(reached.get(length)), _span(intervals.get(length)), number(predicted.get(length)))
        for length in sorted({*reached, *predicted})
    ]
    if default is not None:
        rows.append(("default", number(default), _span(intervals.get(None)), NOTHING))
    table = Table(f"Speed-up by draft length: {name}", ("K", "Measured", "Interval", "Predicted"), tuple(rows))
    blocks: list[Block] = [Figure(_speed_chart(name, reached, intervals, predicted, default), (table,))]
    best = at(model, "best_length")
    if best is not None:
        told = "not to draft" if best == 0 else f"drafts of {best}"
        origin = f", from rounds of {_label(found, at(model, 'from'))}" if at(model, "from") else ""
        blocks.append(Text(f"By the prediction{origin}, best for {name}: {told}."))
    return blocks


def _label(found: Sequence[Way], name: str) -> str:
    return next((way.label for way in found if way.at("name") == name), name)


def _span(interval: tuple[float, float] | None) -> str:
    return NOTHING if interval is None else span(*interval)


def _speed_chart(
    name: str,
    reached: dict[int, float],
    intervals: dict[int | None, tuple[float, float] | None],
    predicted: dict[int, float],
    default: float | None,
) -> Lines | None:
    series = []
    if predicted:
        series.append(Series("predicted", 1, tuple(sorted(predicted.items())), marked=False))
    if reached:
        points = tuple(sorted(reached.items()))
        spans = tuple(intervals.get(length) for length, _ in points)
        series.append(Series("measured, with interval", 0, points, spans, joined=False))
    if not series:
        return None
    level = None if default is None else ("default schedule", default)
    return Lines(f"Speed-up by draft length: {name}", "K, tokens in a draft", tuple(series), level=level, base=1.0)


def _times(found: Sequence[Way]) -> list[Block]:
    if not found:
        return []
    whole = [way for way in found if all(way.at("speed", "time_split", part) is not None for part in PARTS)]
    parts = {part: tuple(way.at("speed", "time_split", part) for way in whole) for part in PARTS}
    chart = Bars("Where the time went", tuple(way.label for way in whole), parts) if whole else None
    rows = tuple(
        (
            way.label,
            *(share(way.at("speed", "time_split", part)) for part in PARTS),
            milliseconds(way.at("speed", "seconds_per_token", "mean")),
            span(
                way.at("speed", "seconds_per_token", "lower"),
                way.at("speed", "seconds_per_token", "upper"),
                milliseconds,
            ),
            number(way.at("speed", "expected_speedup")),
            share(way.at("speed", "break_even_acceptance")),
        )
        for way in found
    )
    heads = ("ms a token", "Quartiles of calls", "Expected", "Break-even")
    return [
        Figure(chart, (Table("Where the time went", ("Way", *map(str.capitalize, PARTS), *heads), rows),)),
        Text(
            "Expected: the speed-up by acceptance and costs as measured. Break-even: the acceptance at which drafts "
            "take as long as plain decoding."
        ),
    ]
