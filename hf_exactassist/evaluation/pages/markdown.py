"""The report as Markdown, as GitHub shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .blocks import Alarm, Block, Figure, Points, Section, Table
from .contents import page
from .words import printable


# what begins something anywhere, and what does at the beginning of a line
_MARKS = re.compile(r"([\\`*_\[\]|~$#])")
_FIRST = re.compile(r"^(?:[-+=]|\d+[.)])(?=\s|$)")


def markdown(report: dict[str, Any]) -> str:
    """A report as Markdown: conclusions first, everything in tables.

    Args:
        report (`dict[str, Any]`): what `report.json` holds; any part may be missing.
    """
    made = page(report)
    parts = [f"# {_line(made.title)}", _line(made.lead)]
    parts += [f"> **{_line(warning)}**" for warning in made.warnings]
    for section in made.sections:
        parts += _section(section, 2)
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(section: Section, level: int) -> Iterator[str]:
    yield f"{'#' * level} {_line(section.title)}"
    for block in section.blocks:
        yield from _block(block)
    for inner in section.sections:
        yield from _section(inner, level + 1)


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Figure):
        for table in block.tables:
            yield from _block(table)
    elif isinstance(block, Points):
        yield "\n".join(f"- {_line(point)}" for point in block.points)
    elif isinstance(block, Table):
        yield f"**{_line(block.caption)}**"
        right = ["---:" if block.figures(place) else "---" for place in range(len(block.columns))]
        lines = [map(_cell, block.columns), right, *(map(_cell, row) for row in block.rows)]
        yield "\n".join(f"| {' | '.join(line)} |" for line in lines)
    else:
        yield _line(block.text)


def _cell(text: str) -> str:
    return f"**{_inline(text)}**" if isinstance(text, Alarm) else _inline(text)


def _inline(text: str) -> str:
    """As it stands: nothing in it is taken for Markdown or HTML."""
    told = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKS.sub(r"\\\1", told)


def _line(text: str) -> str:
    """The same where a line begins: it is no list either."""
    return _FIRST.sub(lambda found: f"{found[0][:-1]}\\{found[0][-1]}", _inline(text))
