"""The benchmark's table: accepted tokens, speed and speed-up by task and overall."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rich.table import Table

from .questions import TASK_OF, TASKS


OVERALL = "Overall"
_COLUMNS = (
    "Task",
    "Questions",
    "#MAT",
    "Tokens/s",
    "Plain tokens/s",
    "Speed-up",
    "Speed-up, total time",
    "Identical",
)
# for eighty columns
_SHORT = ("Task", "Asked", "#MAT", "Tok/s", "Plain", "Speed-up", "Total", "Same")


@dataclass(frozen=True)
class Row:
    """A line of the table. What was not measured is `None`.

    Attributes:
        task (`str`): its name.
        questions (`int`): questions answered.
        skipped (`int`): questions whose prompts do not fit.
        mean_accepted_tokens (`float`, *optional*): tokens per round, the target's own one included.
        tokens_per_second (`float`, *optional*): of assisted answers, mean over questions.
        plain_tokens_per_second (`float`, *optional*): of plain answers, mean over questions.
        speedup (`float`, *optional*): ratio of these means, as published.
        total_speedup (`float`, *optional*): time per token of all plain answers together over that of assisted ones.
        identical (`int`): greedy answers that are plain decoding's.
        compared (`int`): greedy answers.
    """

    task: str
    questions: int
    skipped: int
    mean_accepted_tokens: float | None
    tokens_per_second: float | None
    plain_tokens_per_second: float | None
    speedup: float | None
    total_speedup: float | None
    identical: int
    compared: int


def rows(records: Sequence[dict[str, Any]], clock: str) -> list[Row]:
    """One row for each task and one for all questions together.

    Args:
        records (`Sequence[dict[str, Any]]`): answers.
        clock (`str`): `"cpu"` or `"wall"`.
    """
    by_task = {task: [record for record in records if TASK_OF[record["category"]] == task] for task in TASKS}
    return [_row(task, part, clock) for task, part in {**by_task, OVERALL: records}.items()]


def rich_table(lines: Sequence[Row]) -> Table:
    """For a terminal."""
    table = Table(title="Spec-Bench")
    for place, name in enumerate(_SHORT):
        table.add_column(name, justify="right" if place else "left", overflow="fold")
    for line in lines:
        table.add_row(*_cells(line), style="bold" if line.task == OVERALL else None, end_section=line is lines[-2])
    return table


def markdown(lines: Sequence[Row], name: str) -> str:
    """For a file: the table, and the line that stands in published ones.

    Args:
        lines (`Sequence[Row]`): from [`rows`].
        name (`str`): of the pair.
    """
    tasks = [line for line in lines if line.task != OVERALL]
    overall = lines[-1]
    published = [name, *(_times(line.speedup) for line in tasks), _number(overall.mean_accepted_tokens)]
    heads = ["Models", *(line.task for line in tasks), "#Mean Accepted Tokens", OVERALL]
    return (
        f"{_markdown_table(_COLUMNS, map(_cells, lines))}\n"
        f"{_markdown_table(heads, [[*published, _times(overall.speedup)]])}"
    )


def _row(task: str, records: Sequence[dict[str, Any]], clock: str) -> Row:
    done = [record for record in records if record["skipped"] is None]
    turns = [turn for record in done for turn in record["turns"]]
    rounds = sum(turn["rounds"] for turn in turns)
    speed, plain_speed = (_mean_speed(done, way, clock) for way in ("assisted", "plain"))
    compared = [turn["identical"] for turn in turns if turn["identical"] is not None]
    total = None
    if turns:
        time, plain_time = (_seconds_per_token(turns, way, clock) for way in ("assisted", "plain"))
        total = plain_time / time
    return Row(
        task=task,
        questions=len(done),
        skipped=len(records) - len(done),
        mean_accepted_tokens=sum(turn["published"] for turn in turns) / rounds if rounds else None,
        tokens_per_second=speed,
        plain_tokens_per_second=plain_speed,
        speedup=None if speed is None or plain_speed is None else speed / plain_speed,
        total_speedup=total,
        identical=sum(compared),
        compared=len(compared),
    )


def _mean_speed(records: Sequence[dict[str, Any]], way: str, clock: str) -> float | None:
    return fmean(1 / _seconds_per_token(record["turns"], way, clock) for record in records) if records else None


def _seconds_per_token(turns: Sequence[dict[str, Any]], way: str, clock: str) -> float:
    return sum(turn[way][clock] for turn in turns) / sum(turn[way]["tokens"] for turn in turns)


def _cells(line: Row) -> list[str]:
    return [
        line.task,
        str(line.questions) + (f" ({line.skipped} skipped)" if line.skipped else ""),
        _number(line.mean_accepted_tokens),
        _number(line.tokens_per_second, "{:.1f}"),
        _number(line.plain_tokens_per_second, "{:.1f}"),
        _times(line.speedup),
        _times(line.total_speedup),
        f"{line.identical}/{line.compared}" if line.compared else "-",
    ]


def _number(value: float | None, form: str = "{:.2f}") -> str:
    return "-" if value is None else form.format(value)


_times: Callable[[float | None], str] = lambda value: _number(value, "{:.2f}x")  # noqa: E731


def _markdown_table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    cells = [heads, ["---", *["---:"] * (len(heads) - 1)], *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)
