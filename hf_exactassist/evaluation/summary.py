"""The few sentences that a report begins with."""

from __future__ import annotations

from typing import Any


def conclusions(report: dict[str, Any]) -> list[str]:
    """What an evaluation has shown, the most important first: faults, what is missing, speed, quality.

    Args:
        report (`dict[str, Any]`): the rest of the report.
    """
    speeds, qualities = [], []
    for mode in report["modes"]:
        arms = [arm for arm in mode["arms"] if arm["refused"] is None]
        fastest = max(
            (arm for arm in arms if arm["speed"]["speedup"] is not None),
            key=lambda arm: arm["speed"]["speedup"],
            default=None,
        )
        if fastest is None:
            speeds.append(f"Nothing is known of the speed of {mode['mode']} decoding.")
            continue
        speeds.append(_speed(mode, fastest, len(arms)))
        qualities += _quality(mode, fastest, arms)
        metrics = fastest["quality"]["metrics"]
        qualities += [f"{_titled(mode, fastest)}: {one['sentence']}" for one in metrics if not _differs(one)]
    steps = report["steps"]
    missing = [f"The evaluation is not complete: {steps['done']} of {steps['all']} steps are done."]
    return [*alarms(report), *([] if report["complete"] else missing), *speeds, *qualities]


def alarms(report: dict[str, Any]) -> list[str]:
    """Of these sentences, those that speak against a way of decoding.

    Args:
        report (`dict[str, Any]`): the report.
    """
    found = []
    for mode in report["modes"]:
        for arm in mode["arms"]:
            if arm["refused"] is None and _alarming(arm):
                found.append(f"{_titled(mode, arm)}: {arm['quality']['conclusion']}")
            found += [f"{_titled(mode, arm)}: {one['sentence']}" for one in arm["quality"]["metrics"] if _differs(one)]
    return found


def _speed(mode: dict[str, Any], fastest: dict[str, Any], ways: int) -> str:
    found, interval = fastest["speed"]["speedup"], fastest["speed"]["interval"]
    between = "too few batches for an interval"
    if interval is not None:
        between = f"95 % interval {interval[0]:.2f} to {interval[1]:.2f}"
    # the best of several looks better than it is
    chosen = f"the fastest of {ways} ways as measured here" if ways > 1 else "the one way that was tried"
    sentence = f"{_titled(mode, fastest)}: {found:.2f} times the speed of plain decoding ({between}), {chosen}"
    if interval is None or interval[0] <= 1 <= interval[1]:
        return f"{sentence}; that it is any faster or slower is not shown."
    return f"{sentence}." if found > 1 else f"{sentence}: drafting does not pay here."


def _quality(mode: dict[str, Any], fastest: dict[str, Any], arms: list[dict[str, Any]]) -> list[str]:
    """What was shown of the fastest way, and in a word of the others, where no alarm says more."""
    if _alarming(fastest):
        return []
    sentence, others = fastest["quality"]["conclusion"], [arm for arm in arms if arm is not fastest]
    if others and all(arm["quality"]["conclusion"] == sentence for arm in others):
        return [f"{mode['mode'].capitalize()}, all {len(arms)} ways: {sentence}"]
    more = ""
    if others and not any(map(_alarming, others)):
        more = f" In {len(others)} other way{'s' * (len(others) > 1)} nothing was found either."
    return [f"{_titled(mode, fastest)}: {sentence}{more}"]


def _alarming(arm: dict[str, Any]) -> bool:
    quality = arm["quality"]
    return any(one["kind"] != "numerical tie" for one in quality["divergences"]) or any(
        finding["differs"] for finding in quality["findings"]
    )


def _differs(metric: dict[str, Any]) -> bool:
    return not metric["low"] <= 0 <= metric["high"]


def _titled(mode: dict[str, Any], arm: dict[str, Any]) -> str:
    return f"{mode['mode'].capitalize()}, {arm['name']}"
