"""Stand-in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .data import PromptSet
from .records import Look, Record


def rounds_table(records: Sequence[Record], prompts: PromptSet) -> list[dict[str, Any]]:
    """Stand-in."""
    return [
        {"mode": look.step.unit.mode, "arm": look.step.arm, "prompt": look.prompts[row["row"]], **row}
        for look in records
        if isinstance(look, Look)
        for event in look.events
        if event["event"] == "round"
        for row in event["rows"]
    ]
