"""The gist of an evaluation on a terminal."""

from __future__ import annotations

from typing import Any


def show(report: dict[str, Any]) -> None:
    """Writes a table for each mode, and what may be concluded, to stdout.

    Args:
        report (`dict[str, Any]`): what `report.json` holds.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ..evaluation.summary import alarms

    console = Console(highlight=False)
    for mode in report["modes"]:
        console.print(Text(mode["mode"].capitalize(), style="bold"))
        table = Table(box=None, pad_edge=False)
        for heading in (
            "",
            "acceptance",
            "tokens/\nround",
            "speed-up",
            "texts" if mode["mode"] == "greedy" else "law",
        ):
            # names give way, figures are never cut
            table.add_column(
                heading, justify="right" if heading else "left", no_wrap=bool(heading), overflow="fold", min_width=8
            )
        for arm in mode["arms"]:
            if arm["refused"] is None:
                table.add_row(*_cells(arm))
        console.print(table)
        for arm in mode["arms"]:
            if arm["refused"] is not None:
                console.print(Text(f"Without {arm['name']}: {arm['refused']}", style="dim"), soft_wrap=True)
        console.print()
    speaking_against = alarms(report)
    for sentence in report["conclusions"]:
        console.print(Text(sentence, style="red" if sentence in speaking_against else "green"), soft_wrap=True)


def _cells(arm: dict[str, Any]) -> list[str]:
    acceptance, speed, quality = arm["acceptance"], arm["speed"], arm["quality"]
    return [
        arm["name"],
        _number(acceptance, "rate"),
        _number(acceptance, "tokens_per_round"),
        _number(speed, "speedup") + _interval(speed),
        _outcome(quality),
    ]


def _number(part: dict[str, Any] | None, name: str) -> str:
    value = None if part is None else part[name]
    return "-" if value is None else f"{value:.2f}"


def _interval(speed: dict[str, Any] | None) -> str:
    ends = None if speed is None else speed["interval"]
    return "" if ends is None or None in ends else f" ({ends[0]:.2f}-{ends[1]:.2f})"


def _outcome(quality: dict[str, Any] | None) -> str:
    """Identical texts, or how many tests found a difference."""
    if quality is None:
        return "-"
    if quality["identical"] is not None:
        return f"{quality['identical']}/{quality['texts']} identical"
    differing = sum(finding["differs"] for finding in quality["findings"])
    tests = len(quality["findings"])
    if not tests:
        return "not tested"
    return (
        f"differs in {differing} of {tests} tests"
        if differing
        else f"no difference in {tests} test{'s' * (tests > 1)}"
    )
