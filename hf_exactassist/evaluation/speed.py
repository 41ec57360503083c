"""What decoding takes, from timed calls: seconds per token, and how many times as fast as plain decoding.

Times are divided as in the long run, all of them by all tokens (contract 0x05C).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .. import ledger
from ..benchmark.arithmetic import quartiles
from .bootstrap import FEWEST, speed_ratio
from .records import Call


# what batches with prompts of several kinds count for
SEVERAL = "several kinds"


def seconds_per_token(calls: Sequence[Call], clock: str) -> dict[str, float] | None:
    """In the long run, and how it differs between calls.

    Args:
        calls (`Sequence[Call]`): of one way of decoding.
        clock (`str`): `"cpu"` or `"wall"`.

    Returns:
        `dict[str, float]`, *optional*: `mean`, all seconds over all tokens; `lower`, `median` and `upper` of the
        calls' own; `None` without calls.
    """
    if not calls:
        return None
    return {
        "mean": _per_token(calls, clock),
        **asdict(quartiles([call.seconds[clock] / tokens(call) for call in calls])),
    }


def speed(assisted: Sequence[Call], plain: Sequence[Call], kinds: Sequence[str], clock: str) -> dict[str, Any]:
    """How fast one way of decoding is beside plain decoding of the same units.

    Args:
        assisted (`Sequence[Call]`): its calls.
        plain (`Sequence[Call]`): those of plain decoding. Units that only one of them has are left out.
        kinds (`Sequence[str]`): of each prompt of the prompt set, its kind.
        clock (`str`): `"cpu"` or `"wall"`.

    Returns:
        `dict[str, Any]`: `seconds_per_token`, `speedup`, `interval` of level 0.95 (`None` with fewer than five
        batches) and `by_kind`; `None` where there is nothing to compare.
    """
    pairs = paired(assisted, plain)
    by_kind: dict[str, list[tuple[Call, Call]]] = {}
    for pair in pairs:
        found = {kinds[prompt] for prompt in pair[0].prompts}
        by_kind.setdefault(found.pop() if len(found) == 1 else SEVERAL, []).append(pair)
    return {
        "seconds_per_token": seconds_per_token(assisted, clock),
        "speedup": _speedup(pairs, clock) if pairs else None,
        "interval": _interval(pairs, clock),
        "by_kind": {kind: _speedup(mine, clock) for kind, mine in by_kind.items()},
    }


def paired(assisted: Sequence[Call], plain: Sequence[Call]) -> list[tuple[Call, Call]]:
    """Calls on the same units, in the order of the first."""
    others = {call.step.unit: call for call in plain}
    return [(call, others[call.step.unit]) for call in assisted if call.step.unit in others]


def tokens(call: Call) -> int:
    """New tokens of all texts of a call; each has one at least."""
    return sum(map(len, call.texts))


def _speedup(pairs: Sequence[tuple[Call, Call]], clock: str) -> float:
    ours, theirs = (_per_token(calls, clock) for calls in zip(*pairs, strict=True))
    return theirs / ours


def _per_token(calls: Sequence[Call], clock: str) -> float:
    return ledger.time_per_token([call.seconds[clock] for call in calls], [tokens(call) for call in calls])


def _interval(pairs: Sequence[tuple[Call, Call]], clock: str) -> list[float] | None:
    # repeats of a batch have its prompts in common: they are no further evidence of what other prompts would do
    groups: dict[int, list[tuple[Call, Call]]] = {}
    for pair in pairs:
        groups.setdefault(pair[0].step.unit.batch, []).append(pair)
    if len(groups) < FEWEST:
        return None
    ours, theirs = (
        [
            (sum(pair[side].seconds[clock] for pair in group), sum(tokens(pair[side]) for pair in group))
            for group in groups.values()
        ]
        for side in (0, 1)
    )
    found = speed_ratio(ours, theirs)
    return [found.low, found.high]
