"""The results: a JSON file that grows part by part, and the page made of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .lines import LINES, Figure, Line


RESULTS, PAGE = "speed.json", "speed.md"
REASONS = Path(__file__).with_name("reasons.json")

_HEAD = """# Speed

Written by `python tools/speed_table.py`, which [says what is measured how](../benchmarks.md#the-speed-table); all
figures are in [speed.json](speed.json). Figures in brackets are the quartiles of the repeats.

{measured}

| row | work | Transformers 5.24 | target | measured | met | remarks |
|---|---|---|---|---|---|---|
"""


def read(folder: Path) -> dict[str, Any]:
    """The results so far."""
    file = folder / RESULTS
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"schema": 1, "parts": {}}


def merged(results: dict[str, Any], part: str, entry: dict[str, Any]) -> dict[str, Any]:
    """The results with those of a part, unless better ones are there: full over quick ones, measured over skipped.

    Args:
        results: so far.
        part: its name.
        entry: from [`measured`] or [`skipped`].
    """
    before = results["parts"].get(part)
    if before is not None and _worth(before) > _worth(entry):
        return results
    return {**results, "parts": {**results["parts"], part: entry}}


def _worth(entry: dict[str, Any]) -> int:
    return 0 if "skipped" in entry else 1 if entry["quick"] else 2


def measured(header: dict[str, Any], quick: bool, seconds: float, figures: dict[str, Figure]) -> dict[str, Any]:
    """What is kept of a part: where and how it was measured, how long that took, and a figure for each line."""
    lines = {name: asdict(figure) for name, figure in figures.items()}
    return {"header": header, "quick": quick, "seconds": round(seconds, 1), "lines": lines}


def skipped(lines: Iterable[str], reason: str) -> dict[str, Any]:
    """What is kept of a part that cannot be measured here."""
    return {"skipped": reason, "lines": dict.fromkeys(lines)}


def write(folder: Path, results: dict[str, Any], reasons: dict[str, str]) -> None:
    """Writes both files, each at once, so that an interruption leaves whole ones."""
    table = [_entry(line, results, reasons) for line in LINES]
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / RESULTS, json.dumps({**results, "table": table}, indent=1) + "\n")
    _replace(folder / PAGE, markdown(results, table))


def _replace(file: Path, text: str) -> None:
    unfinished = file.with_name(f".{file.name}")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, file)


def _entry(line: Line, results: dict[str, Any], reasons: dict[str, str]) -> dict[str, Any]:
    """A line of the table as plain data."""
    part = next((part for part in results["parts"].values() if line.name in part["lines"]), None)
    entry = {
        "line": line.name,
        "work": line.work,
        "transformers": line.theirs,
        "target": line.target,
        "at_least": line.at_least,
        "measured": None,
        "met": None,
        "remarks": "",
    }
    if part is None or "skipped" in part:
        return {**entry, "remarks": "not measured" + (f": {part['skipped']}" if part else "")}
    figure = part["lines"][line.name]
    met = line.is_met(figure["value"])
    remarks = [
        "a quick trial, not to be relied on" if part["quick"] else "",
        figure["note"],
        "" if met else reasons.get(line.name) or reasons.get(line.row) or "",
    ]
    return {**entry, "measured": figure, "met": met, "remarks": "; ".join(filter(None, remarks))}


def markdown(results: dict[str, Any], table: list[dict[str, Any]]) -> str:
    """The page."""
    headers = [part["header"] for part in results["parts"].values() if "header" in part]
    rows = []
    for line, entry in zip(LINES, table, strict=True):
        figure, shown = entry["measured"], "-"
        if figure is not None:
            shown = line.shown(figure["value"])
            if figure["lower"] is not None:
                shown += f" ({line.shown(figure['lower'])} to {line.shown(figure['upper'])})"
        met = {True: "yes", False: "**no**", None: "-"}[entry["met"]]
        cells = (line.name, line.work, line.theirs, line.bound(), shown, met, entry["remarks"])
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return _HEAD.format(measured=_where(headers)) + "".join(rows)


def _where(headers: list[dict[str, Any]]) -> str:
    """On what and when, in a line for each machine and set of versions."""
    days: dict[str, list[str]] = {}
    for header in headers:
        place = (
            f"{header['accelerator'] or header['processor']} ({header['cpus']} CPUs), {header['system']}, "
            f"{header['threads']} thread, {header['clock']}; hf_exactassist {header['hf_exactassist']}, transformers "
            f"{header['transformers']}, torch {header['torch']}, Python {header['python']}"
        )
        days.setdefault(place, []).append(header["date"][:10])
    told = []
    for place, dates in days.items():
        first, last = min(dates), max(dates)
        told.append(f"* {first if first == last else f'{first} to {last}'}: {place}")
    return "\n".join(told) or "Nothing has been measured yet."
