"""Figures and foreign texts in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.cells import cell_len


NOTHING = "–"


def at(value: Any, *path: str | int) -> Any:
    """What stands somewhere in a report; `None` if it or anything on the way is missing."""
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def number(value: float | None) -> str:
    """A figure near 1."""
    return NOTHING if value is None else f"{value:.2f}"


def short(value: float | None) -> str:
    """A figure whose size is not known beforehand, such as a p-value: three digits that count."""
    return NOTHING if value is None else f"{value:.3g}"


def count(value: int | None) -> str:
    """A whole number."""
    return NOTHING if value is None else f"{value:,}"


def share(value: float | None) -> str:
    """A share as a percentage."""
    return NOTHING if value is None else f"{100 * value:.1f}%"


def span(low: float | None, high: float | None, written: Callable[[float | None], str] = number) -> str:
    """An interval."""
    return NOTHING if low is None or high is None else f"{written(low)} to {written(high)}"


def milliseconds(value: float | None) -> str:
    """Seconds, told in thousandths."""
    return NOTHING if value is None else f"{1e3 * value:.2f}"


def counted(value: int | None, noun: str) -> str:
    """So many of them."""
    return f"{count(value)} {noun}{'' if value == 1 else 's'}"


def printable(text: str) -> str:
    """Text in one line; what cannot be seen or would turn the line around is written as an escape."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def quoted(text: str | None) -> str:
    """The text of a token, whose blanks matter."""
    return NOTHING if text is None else repr(text)


def plainly(value: Any) -> str:
    """A setting as a reader writes it."""
    if value is None or value == [] or value == {}:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {plainly(one)}" for name, one in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(plainly(one) for one in value)
    return str(value)


def shortened(text: str, longest: int) -> str:
    """Text of so many columns at most, its middle left out: names of ways differ at both ends."""
    text = printable(text)
    told, kept = text, len(text)
    while cell_len(told) > longest:
        kept -= 1
        told = f"{text[: kept // 3].rstrip()}…{text[-(kept - kept // 3) :].lstrip()}"
    return told


def distinct(texts: Sequence[str], longest: int) -> list[str]:
    """Shortened texts, numbered where that makes different ones the same."""
    cut = [shortened(text, longest) for text in texts]
    return [
        one if cut.count(one) == 1 else f"{shortened(one, longest - 4)} ({cut[:place].count(one) + 1})"
        for place, one in enumerate(cut)
    ]
