"""What pages are made of, whatever they are written in."""

from __future__ import annotations

from dataclasses import dataclass

from .charts import Chart
from .words import NOTHING


class Alarm(str):
    """A cell that must not be overlooked."""


@dataclass(frozen=True)
class Text:
    """A paragraph.

    Attributes:
        text (`str`): one line.
    """

    text: str


@dataclass(frozen=True)
class Points:
    """A list.

    Attributes:
        points (`tuple[str, ...]`): one line each.
    """

    points: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Rows that begin with what they are about.

    Attributes:
        caption (`str`): what it shows.
        columns (`tuple[str, ...]`): headings.
        rows (`tuple[tuple[str, ...], ...]`): as many cells each.
        folded (`bool`): whether it is opened only on request, where that can be.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    folded: bool = False

    @property
    def longest(self) -> int:
        """Letters of the longest first cell."""
        return max((len(row[0]) for row in self.rows), default=0)

    @property
    def tells(self) -> bool:
        """Whether any row says more than what it is about."""
        return any(cell != NOTHING for row in self.rows for cell in row[1:])

    def figures(self, column: int) -> bool:
        """Whether a column holds numbers, which stand to the right."""
        return column > 0 and all(row[column][:1] in "0123456789-–" for row in self.rows)


@dataclass(frozen=True)
class Figure:
    """A picture and the same in numbers.

    Attributes:
        chart (`Chart`, *optional*): what is drawn, if there is anything to draw.
        tables (`tuple[Table, ...]`): its numbers.
    """

    chart: Chart | None
    tables: tuple[Table, ...]


Block = Text | Points | Table | Figure


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        anchor (`str`): its name in links, of small letters and hyphens.
        title (`str`): heading.
        blocks (`tuple[Block, ...]`): what it says itself.
        sections (`tuple[Section, ...]`): and its parts.
    """

    anchor: str
    title: str
    blocks: tuple[Block, ...] = ()
    sections: tuple[Section, ...] = ()


@dataclass(frozen=True)
class Page:
    """A report.

    Attributes:
        title (`str`): heading.
        lead (`str`): on what, when.
        warnings (`tuple[str, ...]`): what must be known before anything is read.
        sections (`tuple[Section, ...]`): in order.
    """

    title: str
    lead: str
    warnings: tuple[str, ...]
    sections: tuple[Section, ...]
