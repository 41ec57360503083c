"""What of a report is the same however often it is made: everything that does not depend on a clock."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from .plan import GREEDY, SHARED_NOISE


# a sentence on speed is among the conclusions; how many processes shared the work makes no difference to its outcome
_LEFT_OUT = ("digest", "conclusions", "processes")
_OF_THE_MOMENT = ("date", "load_average")
# what follows draft lengths
_FOLLOWS = ("acceptance", "diagnosis")


def digest(report: dict[str, Any]) -> str:
    """SHA-256 of a report, in hexadecimal, without what depends on a clock.

    Draft lengths follow the clock where they adapt and texts do not depend on them: what hangs on them is left out
    there too.

    Args:
        report (`dict[str, Any]`): from [`~hf_exactassist.evaluation.report.make_report`].

    Raises:
        ValueError: it holds a number that is not finite.
    """
    kept = {key: value for key, value in report.items() if key not in _LEFT_OUT}
    kept["header"] = {key: value for key, value in report["header"].items() if key not in _OF_THE_MOMENT}
    kept["modes"] = [_timeless(mode) for mode in report["modes"]]
    return hashlib.sha256(json.dumps(kept, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _timeless(mode: dict[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in mode["plain"].items() if key != "seconds_per_token"}
    arms = []
    for arm in mode["arms"]:
        clocked = arm["num_assistant_tokens"] is None and (mode["mode"] == GREEDY or arm["coupling"] == SHARED_NOISE)
        left_out = ("speed", *(_FOLLOWS if clocked else ()))
        arms.append({key: value for key, value in arm.items() if key not in left_out})
    return {"mode": mode["mode"], "plain": plain, "arms": arms}
