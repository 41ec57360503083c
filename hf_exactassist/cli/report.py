"""Counters as JSON and as one line."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from ..telemetry import AssistStats


def accepted_per_round(stats: AssistStats) -> float:
    """Accepted tokens per row and round that drafted anything; 0.0 if none did."""
    return stats.accepted / stats.drafted_by_position[0] if stats.drafted_by_position else 0.0


def counters(stats: AssistStats, seconds: float) -> dict[str, Any]:
    """The counters of one call with the rates that follow from them."""
    return {
        **asdict(stats),
        "expected_speedup": stats.expected_speedup,
        "break_even_acceptance": stats.break_even_acceptance,
        "advice": stats.advice,
        "acceptance_rate": stats.acceptance_rate,
        "accepted_per_round": accepted_per_round(stats),
        "seconds": seconds,
        "tokens_per_second": stats.published / seconds if seconds else 0.0,
    }


def summary(stats: AssistStats, seconds: float) -> str:
    """The counters in a line."""
    rate = stats.published / seconds if seconds else 0.0
    tokens = "1 token" if stats.published == 1 else f"{stats.published} tokens"
    if stats.serial:
        return f"{tokens} in {seconds:.2f} s ({rate:.1f}/s), token by token: drafts cannot help this model"
    ties = f", {stats.near_ties} at a near tie" if stats.near_ties else ""
    expected = stats.expected_speedup
    warning = f". {stats.advice}" if expected is not None and expected <= 1 and stats.advice else ""
    return (
        f"{tokens} in {seconds:.2f} s ({rate:.1f}/s), {stats.target_forwards} target forwards, {stats.accepted} of "
        f"{stats.drafted} drafted tokens accepted, {accepted_per_round(stats):.2f} per round{ties}{warning}"
    )
