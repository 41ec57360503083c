"""Why acceptance is low."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .blocks import Block, Points, Section, Table
from .ways import Way, by_place, measured, together, ways
from .words import NOTHING, at, count, quoted, share, short


_TOKENS = 5


def reasons(report: dict[str, Any], mode: dict[str, Any], anchor: str) -> Section | None:
    """Causes, positions and tokens of rejections; `None` where nothing was looked into."""
    found = [way for way in measured(ways(report, mode)) if way.at("diagnosis")]
    blocks = [*_causes(found), *_positions(found), *_tokens(found)]
    return Section(anchor, "Why drafts were rejected", tuple(blocks)) if blocks else None


def _causes(found: Sequence[Way]) -> list[Block]:
    names = list(dict.fromkeys(name for way in found for name in way.at("diagnosis", "causes") or {}))
    without = [(way, "Nothing was rejected.") for way in found if way.at("diagnosis", "causes") == {}]
    blocks: list[Block] = []
    if names:
        rows = tuple(
            (way.label, *(share(way.at("diagnosis", "causes", name)) for name in names))
            for way in found
            if way.at("diagnosis", "causes")
        )
        columns = ("Way", *(name.capitalize() for name in names))
        blocks.append(Table("Share of rejections by cause", columns, rows))
        notes = [
            (way, f"{name}: {note}")
            for way in found
            for name, note in (way.at("diagnosis", "cause_notes") or {}).items()
        ]
        blocks += [Points(together(found, notes))] if notes else []
    if without:
        blocks.append(Points(together(found, without)))
    return blocks


def _positions(found: Sequence[Way]) -> list[Block]:
    def column(written: Callable[[dict[str, Any]], str]) -> Callable[[Way], list[str] | None]:
        return lambda way: [written(one) for one in way.at("diagnosis", "by_position") or []]

    tables = {
        "Acceptance expected from the two laws (1 - total variation), by position": lambda one: share(
            at(one, "overlap")
        ),
        "How often both laws have the same likeliest token, by position": lambda one: share(at(one, "same_top")),
        "Divergence of the two laws in nats, by position": _divergence,
    }
    made = [by_place(caption, found, column(written), str) for caption, written in tables.items()]
    return [table for table in made if table is not None]


def _divergence(one: dict[str, Any]) -> str:
    finite = [short(at(one, "divergence"))] if at(one, "divergence") is not None else []
    infinite = [f"infinite in {count(at(one, 'infinite'))}"] if at(one, "infinite") else []
    return ", ".join(finite + infinite) or NOTHING


def _tokens(found: Sequence[Way]) -> list[Block]:
    def written(one: dict[str, Any]) -> str:
        return f"{quoted(at(one, 'text'))} {count(at(one, 'rejected'))} of {count(at(one, 'drafted'))}"

    def most(way: Way) -> list[dict[str, Any]]:
        return (way.at("diagnosis", "rejected_tokens") or [])[:_TOKENS]

    table = by_place("Tokens most often rejected, of how many drafted", found, most, written)
    return [] if table is None else [table]
