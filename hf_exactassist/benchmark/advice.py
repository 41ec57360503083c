"""What the figures of a case mean, in a sentence or two."""

from __future__ import annotations

from typing import Any

from .variants import OURS


def advice(case: dict[str, Any]) -> str:
    """Whether drafting pays, and what stands in its way.

    Args:
        case (`dict[str, Any]`): the other figures of [`~hf_exactassist.benchmark.report.figures`].

    Returns:
        `str`: one or two sentences; empty if nothing was measured.
    """
    ours = [one for one in case["variants"] if one["kind"] == OURS and one["measured"] is not None]
    if not ours:
        return ""
    best = max(ours, key=lambda one: one["measured"]["speedup"])
    default = next((one for one in ours if one["num_assistant_tokens"] is None), None)
    measured = best["measured"]["speedup"]
    expected = (case["acceptance"] or {}).get("expected_speedup") or {}
    allowed = max(expected.values(), default=None)
    if measured > 1:
        told = f"Drafting pays: {measured:.2f} times as fast as plain ({_short(best)})"
        if default is not None and default is not best:
            told += f", {default['measured']['speedup']:.2f} with the defaults"
        return told + (f"; forwards alone would allow {allowed:.2f}." if allowed is not None else ".")
    if allowed is None:
        return f"Drafting does not pay here: {measured:.2f} of plain speed at best ({_short(best)})."
    if allowed <= 1:
        return "This pair cannot pay: " + _price(case)
    number = max(expected, key=lambda length: expected[length])
    told = f"The forwards alone would allow {allowed:.2f} at K={number}, and {measured:.2f} is reached"
    efficiency = (best["rounds"] or {}).get("efficiency")
    share = "" if efficiency is None else f": they account for {efficiency:.2f} of the time of {_short(best)}"
    return f"Drafting does not pay here, though it could. {told}{share}."


def _price(case: dict[str, Any]) -> str:
    forwards = case["forwards"]
    told = f"a draft step costs {forwards['cost_ratio']:.2f} of a target step"
    needed = [value for value in forwards["break_even_acceptance"].values() if value is not None]
    if not needed:
        return f"{told}, too much even if every draft were accepted."
    accepted = case["acceptance"]["survival"][0]
    return (
        f"{told}, so at least {min(needed):.2f} of drafts would have to be accepted, and {accepted:.2f} of first "
        "draft tokens are."
    )


def _short(variant: dict[str, Any]) -> str:
    number = variant["num_assistant_tokens"]
    return "the defaults" if number is None else f"K={number}"
