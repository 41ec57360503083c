"""Writes the results of an evaluation beside its records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from . import pages
from .folder import Folder


def write_results(folder: Folder, report: dict[str, Any], rounds: Sequence[dict[str, Any]]) -> None:
    """Writes `report.json`, `report.md`, `report.html` and `rounds.parquet`.

    Args:
        folder (`Folder`): where.
        report (`dict[str, Any]`): as JSON can write it.
        rounds (`Sequence[dict[str, Any]]`): a row for every round and prompt; no file without any.

    Raises:
        ValueError: a number of the report is not finite.
        UnusableFolder: a file cannot be written.
    """
    folder.write("report.json", json.dumps(report, indent=1, allow_nan=False) + "\n")
    folder.write("report.md", pages.markdown(report))
    folder.write("report.html", pages.html(report))
    if not rounds:
        folder.remove("rounds.parquet")
        return
    from datasets import Dataset

    table = Dataset.from_list(list(rounds))
    with folder.replacing("rounds.parquet") as new:
        table.to_parquet(str(new))
