"""Why acceptance is low, from the acceptance log: places, tokens, causes (contract 0x05E, 0x06F)."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from ..errors import UnusableData
from .rounds import RowRound, row_rounds


QUALITY, PROCESSORS, MAPPING, POSITION = CAUSES = ("draft quality", "processors", "tokenizer mapping", "position")
NOTES = {
    QUALITY: (
        "The drafter finds other tokens likely than the target does: take a drafter closer to the target, or one "
        "tuned on its texts."
    ),
    PROCESSORS: (
        "The target's sampling settings (top-k, top-p, penalties, grammars, ...) exclude the rejected token, which "
        "the drafter held for likely: with settings that leave few tokens, a drafter that ranks them otherwise; else "
        "see whether the settings are wanted, and whether the drafter has others of its own."
    ),
    MAPPING: (
        "The target went on with a token that the assistant's tokenizer has no counterpart for: take an assistant "
        "with the target's tokenizer."
    ),
    POSITION: (
        "Later tokens of a draft are rejected more often than first ones, since they build on tokens drafted before: "
        "make drafts shorter."
    ),
}
# tokens that are told of
_MOST = 10


def diagnosis(
    rounds: Sequence[RowRound],
    decode: Callable[[list[int]], str] | None = None,
    proposable: Collection[int] | None = None,
) -> dict[str, Any]:
    """Where, for which tokens and why drafts are rejected.

    Args:
        rounds (`Sequence[RowRound]`): rounds of one way of decoding.
        decode (`Callable[[list[int]], str]`, *optional*): text of tokens; without it no text is told.
        proposable (`Collection[int]`, *optional*): the target's tokens that the drafter can propose; `None` for all.

    Returns:
        `dict[str, Any]`: `by_position`, `rejected_tokens`, `causes` (see [`shares`]) and `cause_notes`, a sentence for
        each cause that there is.
    """
    causes = shares(rounds, proposable)
    return {
        "by_position": by_position(rounds),
        "rejected_tokens": rejected_tokens(rounds, decode),
        "causes": causes,
        "cause_notes": {cause: NOTES[cause] for cause, share in causes.items() if share},
    }


def by_position(rounds: Sequence[RowRound]) -> list[dict[str, Any]]:
    """How far the two laws differ at each place of a draft, on average over drafts that were reached.

    Args:
        rounds (`Sequence[RowRound]`): of one way of decoding.

    Returns:
        `list[dict[str, Any]]`: `position` from 1, `decisions`; `overlap` (the expected acceptance), `divergence` (in
        nats, on average over those that are finite), how many are `infinite`, and `same_top`. `None` where no law was
        kept.
    """
    places: dict[int, list[dict[str, Any]]] = {}
    for part in rounds:
        for position, decision in enumerate(part.decisions, 1):
            places.setdefault(position, []).append(decision)
    told = []
    for position, decisions in sorted(places.items()):
        # logs of older versions do not compare laws
        compared = [one for one in decisions if one.get("overlap") is not None]
        finite = [one["divergence"] for one in compared if one["divergence"] is not None]
        told.append(
            {
                "position": position,
                "decisions": len(decisions),
                "overlap": _mean([one["overlap"] for one in compared]),
                "divergence": _mean(finite),
                "infinite": len(compared) - len(finite),
                "same_top": _mean([one["same_top"] for one in compared]),
            }
        )
    return told


def rejected_tokens(
    rounds: Sequence[RowRound], decode: Callable[[list[int]], str] | None = None
) -> list[dict[str, Any]]:
    """The tokens that are rejected most often, ten at most.

    Args:
        rounds (`Sequence[RowRound]`): of one way of decoding.
        decode (`Callable[[list[int]], str]`, *optional*): text of tokens.

    Returns:
        `list[dict[str, Any]]`: `token`, its `text`, how often it was `drafted` where it was reached, and `rejected`.
    """
    drafted, rejected = Counter[int](), Counter[int]()
    for decision in (decision for part in rounds for decision in part.decisions):
        drafted[decision["token"]] += 1
        rejected[decision["token"]] += not decision["accepted"]
    most = sorted((+rejected).items(), key=lambda found: (-found[1], found[0]))[:_MOST]
    return [
        {
            "token": token,
            "text": None if decode is None else decode([token]),
            "drafted": drafted[token],
            "rejected": count,
        }
        for token, count in most
    ]


def shares(rounds: Sequence[RowRound], proposable: Collection[int] | None = None) -> dict[str, float]:
    """Rejections by cause.

    Each counts for the first that fits: the target's processors exclude the token; the target went on with a token
    that could not be proposed. Of the others, as many as later places have beyond the first one's rate count for
    position, and what is left for the quality of drafts.

    Args:
        rounds (`Sequence[RowRound]`): of one way of decoding.
        proposable (`Collection[int]`, *optional*): the target's tokens that the drafter can propose; `None` for all.

    Returns:
        `dict[str, float]`: of sum 1; empty without rejections.
    """
    excluded = unmapped = 0
    reached, left = Counter[int](), Counter[int]()
    for part in rounds:
        for position, decision in enumerate(part.decisions, 1):
            reached[position] += 1
            if decision["accepted"]:
                continue
            if decision["p"] == 0:
                excluded += 1
            elif proposable is not None and part.published[position - 1] not in proposable:
                unmapped += 1
            else:
                left[position] += 1
    rest = sum(left.values())
    rejections = excluded + unmapped + rest
    if not rejections:
        return {}
    first = left[1] / reached[1]
    beyond = sum(left[position] - first * reached[position] for position in reached if position > 1)
    # where later places do better none is due to them
    late = max(0.0, beyond)
    counts = {QUALITY: rest - late, PROCESSORS: float(excluded), MAPPING: float(unmapped), POSITION: late}
    return {cause: count / rejections for cause, count in counts.items()}


def diagnose_log(
    path: str | PathLike[str],
    decode: Callable[[list[int]], str] | None = None,
    proposable: Collection[int] | None = None,
) -> dict[str, Any]:
    """The same from a file that `telemetry=` or `exactassist generate --telemetry` has written.

    Args:
        path (`str` or `PathLike`): the file.
        decode (`Callable[[list[int]], str]`, *optional*): text of the target's tokens.
        proposable (`Collection[int]`, *optional*): see [`diagnosis`].

    Returns:
        `dict[str, Any]`: see [`diagnosis`].

    Raises:
        UnusableData: the file cannot be read or holds no decision, or one of its lines is no record of the log.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableData(f"The acceptance log cannot be read: {error}.") from error
    events = [_event(line, f"Line {number} of {path}") for number, line in enumerate(lines, 1) if line.strip()]
    rounds = row_rounds(events)
    if not any(part.decisions for part in rounds):
        raise UnusableData(f"{path} tells of no draft that was judged: log a call with an assistant, in whole rounds.")
    return diagnosis(rounds, decode, proposable)


_FIELDS = {
    "decision": {"round": str, "row": int, "token": int, "p": float, "accepted": bool},
    "round": {"round": str, "generation": int, "rows": list},
}
_ROW = {"row": int, "drafted": int, "accepted": int, "published": list, "terminal": str, "stopped": bool}


def _event(line: str, where: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError as error:
        raise UnusableData(f"{where} is no JSON: take it out if the log was broken off there.") from error
    kind = event.get("event") if isinstance(event, dict) else None
    fields = _FIELDS.get(kind) if isinstance(kind, str) else None
    wrong = "event" if fields is None else _wrong(event, fields)
    if wrong is None and kind == "round":
        wrong = next((f"rows: {field}" for row in event["rows"] if (field := _wrong(row, _ROW))), None)
    if wrong is not None:
        raise UnusableData(f"{where} is no record of an acceptance log (its {wrong!r}): give a file of `telemetry`.")
    return event


def _wrong(value: Any, fields: dict[str, type]) -> str | None:
    if not isinstance(value, dict):
        return "fields"
    return next((name for name, kind in fields.items() if not isinstance(value.get(name), kind)), None)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
