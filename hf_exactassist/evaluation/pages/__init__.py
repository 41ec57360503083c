"""Stand-in."""

from __future__ import annotations

import json
from typing import Any


def markdown(report: dict[str, Any]) -> str:
    """Stand-in."""
    return "\n".join(report["conclusions"]) + "\n"


def html(report: dict[str, Any]) -> str:
    """Stand-in."""
    return f"<!doctype html><pre>{json.dumps(report)}</pre>"
