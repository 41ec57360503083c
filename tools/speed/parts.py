"""What is measured together: each part gives some lines of the table, and is kept by itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import drafted, lengths, memory, overhead, pairs
from .drafted import Budget
from .lines import BATCHES, DRAFTS, KINDS, LINES, MODES, VOCABULARIES, Figure


Advance = Callable[[], None]


@dataclass(frozen=True)
class Part:
    """A part.

    Args:
        name: unique.
        lines: those it gives, by the key of what `measure` returns.
        measure: measures within a budget; calls its second argument now and then.
        full: the usual budget.
        quick: the one of a trial.
    """

    name: str
    lines: dict[str, str]
    measure: Callable[[Budget, Advance], dict[str, Figure]]
    full: Budget
    quick: Budget

    def figures(self, quick: bool, advance: Advance) -> dict[str, Figure]:
        """Measures it; a figure for each line.

        Raises:
            Skipped: it cannot be measured here.
        """
        found = self.measure(self.quick if quick else self.full, advance)
        return {line: found[key] for key, line in self.lines.items()}


def _beside(make: Callable[[], Any], mode: str, watched: bool) -> Callable[[Budget, Advance], dict[str, Figure]]:
    return lambda budget, advance: drafted.beside_transformers(make(), mode, budget, advance, watched)


def _wrong(make: Callable[[], Any], mode: str) -> Callable[[Budget, Advance], dict[str, Figure]]:
    return lambda budget, advance: {"speed": drafted.never_right(make(), mode, budget, advance)}


def _choice(draft: str, kind: str) -> Callable[[Budget, Advance], dict[str, Figure]]:
    return lambda budget, advance: {"speed": lengths.defaults_against_best(pairs.large(draft), kind, budget, advance)}


def _batch(make: Callable[[], Any], size: int) -> Callable[[Budget, Advance], dict[str, Figure]]:
    return lambda budget, advance: drafted.batches(make(), size, budget, advance)


def _growth(mode: str) -> Callable[[Budget, Advance], dict[str, Figure]]:
    return lambda budget, advance: {"growth": overhead.growth(mode, budget, advance)}


def _parts() -> list[Part]:
    tiny = {name: functools.partial(pairs.tiny, size) for name, size in VOCABULARIES.items()}
    efficiency = {"sampled": "a", "greedy": "b"}
    parts = []
    for name, make in tiny.items():
        for mode in MODES:
            lines = {"speed": f"d-{name}-{mode}"}
            if name == "49k":
                lines["efficiency"] = efficiency[mode]
            measure = _beside(make, mode, watched=False)
            parts.append(Part(f"tiny-{name}-{mode}", lines, measure, Budget(7, 192, 4), Budget(2, 48, 2)))
    for mode in MODES:
        lines = {"speed": f"d-large-{mode}", "share": f"c-{mode}"}
        measure = _beside(pairs.large, mode, watched=True)
        parts.append(Part(f"large-{mode}", lines, measure, Budget(3, 64, 3), Budget(1, 16, 1)))
    for name, make in tiny.items():
        for mode in MODES:
            lines = {"speed": f"e-{name}-{mode}"}
            parts.append(Part(f"wrong-{name}-{mode}", lines, _wrong(make, mode), Budget(7, 256, 2), Budget(2, 64)))
    lines = {"speed": "e-large-greedy"}
    parts.append(Part("wrong-large", lines, _wrong(pairs.large, "greedy"), Budget(2, 128), Budget(1, 16)))
    for draft in DRAFTS:
        for kind in KINDS:
            name = f"f-{draft}-{kind}"
            parts.append(Part(name, {"speed": name}, _choice(draft, kind), Budget(1, 96), Budget(1, 8)))
    for name, make, full, quick in (
        ("49k", tiny["49k"], Budget(5, 128), Budget(2, 32)),
        ("large", pairs.large, Budget(3, 32), Budget(1, 8)),
    ):
        for size in BATCHES:
            lines = {key: f"g-{name}-{size}-{key}" for key in ("batch", "single")}
            parts.append(Part(f"batch-{name}-{size}", lines, _batch(make, size), full, quick))
    for mode in MODES:
        parts.append(Part(f"h-{mode}", {"growth": f"h-{mode}"}, _growth(mode), Budget(7, 544), Budget(2, 160)))
    lines = {"full": "i-full", "sliding": "i-sliding"}
    # nothing is timed there
    parts.append(Part("memory", lines, lambda _, advance: memory.worst(advance), Budget(1, 1), Budget(1, 1)))
    return parts


PARTS = tuple(_parts())


def chosen(rows: Sequence[str]) -> list[Part]:
    """The parts that some rows or lines need; all of them if none is named.

    Args:
        rows: letters of rows, or beginnings of lines' names up to a hyphen, such as `d-8k`.

    Raises:
        KeyError: there is no such row.
    """

    def names(row: str) -> set[str]:
        return {line.name for line in LINES if f"{line.name}-".startswith(f"{row}-")}

    for row in rows:
        if not names(row):
            raise KeyError(row)
    wanted = {name for row in rows for name in names(row)} if rows else {line.name for line in LINES}
    return [part for part in PARTS if wanted & set(part.lines.values())]
