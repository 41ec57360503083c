"""Ways of decoding as pages name and draw them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .blocks import Table
from .words import NOTHING, at


@dataclass(frozen=True)
class Way:
    """A way of decoding in one mode.

    Attributes:
        label (`str`): its name, with as much of a path as tells assistants apart.
        style (`int`): its number among all ways of the report.
        arm (`dict[str, Any]`): what the report says of it.
    """

    label: str
    style: int
    arm: dict[str, Any]

    def at(self, *path: str | int) -> Any:
        """A figure; `None` where there is none."""
        return at(self.arm, *path)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of its speed-up; `None` where there is none."""
        low, high = self.at("speed", "interval", 0), self.at("speed", "interval", 1)
        return None if low is None or high is None else (low, high)


def ways(report: dict[str, Any], mode: dict[str, Any]) -> list[Way]:
    """All assisted ways of a mode, refused ones too."""
    arms = [arm for one in at(report, "modes") or [] for arm in at(one, "arms") or []]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(arm["name"] for arm in arms))}
    drafters = drafter_names(report)
    return [
        Way(_named(arm["name"], at(arm, "drafter"), drafters), numbers[arm["name"]], arm)
        for arm in at(mode, "arms") or []
    ]


def drafter_names(report: dict[str, Any]) -> dict[str, str]:
    """For each drafter, the end of its path that no other one has."""
    arms = [arm for one in at(report, "modes") or [] for arm in at(one, "arms") or []]
    paths = {name: name.rstrip("/").split("/") for arm in arms if (name := at(arm, "drafter"))}
    names = {}
    for name, parts in paths.items():
        others = [other for key, other in paths.items() if key != name]
        length = 1
        while length < len(parts) and any(other[-length:] == parts[-length:] for other in others):
            length += 1
        names[name] = "/".join(parts[-length:])
    return names


def measured(found: Sequence[Way]) -> list[Way]:
    """Those that were not refused."""
    return [way for way in found if way.at("refused") is None]


def by_place(
    caption: str,
    found: Sequence[Way],
    values: Callable[[Way], Sequence[Any] | None],
    written: Callable[[Any], str],
    first: int = 1,
    folded: bool = False,
) -> Table | None:
    """A row for each way and a column for each place of a list; `None` where no way has any.

    Args:
        caption (`str`): what it shows.
        found (`Sequence[Way]`): the ways.
        values (`Callable`): the list of a way, or `None`.
        written (`Callable`): writes one value.
        first (`int`): number of the first place.
        folded (`bool`): see [`Table`].
    """
    lists = [list(values(way) or []) for way in found]
    width = max(map(len, lists), default=0)
    if not width:
        return None
    rows = tuple(
        (way.label, *(written(value) for value in row), *[NOTHING] * (width - len(row)))
        for way, row in zip(found, lists, strict=True)
    )
    return Table(caption, ("Way", *(str(first + place) for place in range(width))), rows, folded)


def together(found: Sequence[Way], said: Sequence[tuple[Way, str]]) -> tuple[str, ...]:
    """Sentences with those of which they are said, each once.

    Args:
        found (`Sequence[Way]`): all of whom something could be said.
        said (`Sequence[tuple[Way, str]]`): who and what.
    """
    labels: dict[str, list[str]] = {}
    for way, sentence in said:
        labels.setdefault(sentence, []).append(way.label)
    return tuple(
        f"{'All ways' if 1 < len(found) == len(who) else '; '.join(who)}: {sentence}"
        for sentence, who in labels.items()
    )


def _named(name: str, drafter: str | None, drafters: dict[str, str]) -> str:
    if drafter and name.startswith(drafter):
        return drafters[drafter] + name[len(drafter) :]
    return name
