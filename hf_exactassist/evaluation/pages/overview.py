"""All ways of a mode side by side."""

from __future__ import annotations

from typing import Any

from .blocks import Alarm, Block, Points, Section, Table, Text
from .ways import Way, measured, together, ways
from .words import NOTHING, at, count, milliseconds, number, share, short, span


PARTS = ("draft", "verify", "state", "other")
_COLUMNS = (
    "Way",
    "Speed-up (interval)",
    "Quality",
    "Accepted",
    "Tokens a round",
    "ms a token",
    f"Time: {', '.join(PARTS)}",
)


def overview(report: dict[str, Any], mode: dict[str, Any], anchor: str) -> Section:
    """The table to begin with."""
    found = ways(report, mode)
    plain = at(mode, "plain") or {}
    seconds = milliseconds(at(plain, "seconds_per_token", "mean"))
    rows: list[tuple[str, ...]] = [("plain", "1.00", "what is compared with", NOTHING, NOTHING, seconds, NOTHING)]
    rows += [_row(way) for way in measured(found)]
    blocks: list[Block] = [Table("All ways of decoding, plain first", _COLUMNS, tuple(rows))]
    blocks.append(Text(_plain_words(plain)))
    refused = [(way, way.at("refused")) for way in found if way.at("refused") is not None]
    if refused:
        blocks += [Text("Refused, and so not measured:"), Points(together(found, refused))]
    return Section(anchor, "All ways", tuple(blocks))


def _row(way: Way) -> tuple[str, ...]:
    interval = way.interval
    parts = way.at("speed", "time_split")
    split = " / ".join(f"{100 * parts[name]:.0f}" for name in PARTS) + "%" if _whole(parts) else NOTHING
    return (
        way.label,
        number(way.at("speed", "speedup")) + ("" if interval is None else f" ({span(*interval)})"),
        _quality(way),
        share(way.at("acceptance", "rate")),
        number(way.at("acceptance", "tokens_per_round")),
        milliseconds(way.at("speed", "seconds_per_token", "mean")),
        split,
    )


def _quality(way: Way) -> str:
    """Whether its texts are plain decoding's."""
    faults = [one for one in way.at("quality", "divergences") or [] if at(one, "kind") == "fault"]
    differing = [one for one in way.at("quality", "findings") or [] if at(one, "differs")]
    words = []
    if way.at("quality", "identical") is not None:
        words.append(f"{count(way.at('quality', 'identical'))} of {count(way.at('quality', 'texts'))} identical")
    if faults:
        words.append(f"{count(len(faults))} faulty")
    if way.at("quality", "findings"):
        tests = len(way.at("quality", "findings"))
        words.append(f"{len(differing)} of {tests} tests differ" if differing else f"no difference in {tests} tests")
    told = ", ".join(words) or "not tested"
    return Alarm(told) if faults or differing else told


def _whole(parts: Any) -> bool:
    return all(at(parts, name) is not None for name in PARTS)


def _plain_words(plain: dict[str, Any]) -> str:
    told = "Speed-up is plain decoding's time per token over a way's own: above 1, the way is faster."
    if at(plain, "tokens") is not None:
        told += f" Plain decoding made {count(plain['tokens'])} tokens"
        length = at(plain, "mean_length")
        told += "." if length is None else f", {short(length)} a text on average."
    return told
