"""From records to a report: plain data for JSON, without a number that is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from . import costs
from .arms import Material, arm_told
from .data import PromptSet
from .digest import digest
from .metrics import load_metric
from .plan import PLAIN, Arm, Plan
from .records import Record, in_order
from .sampled import Finding, level
from .speed import seconds_per_token, tokens
from .summary import conclusions


def make_report(
    manifest: Mapping[str, Any],
    plan: Plan,
    prompts: PromptSet,
    records: Sequence[Record],
    judged: Mapping[tuple[str, str], Sequence[Finding]],
    decode: Callable[[list[int]], str],
    metrics: Sequence[str] = (),
    proposable: Mapping[str, Collection[int] | None] | None = None,
) -> dict[str, Any]:
    """Everything that an evaluation has shown.

    Records may come in any order, and some may be missing: what cannot be said without them is `None`.

    Args:
        manifest (`Mapping[str, Any]`): `"header"` (where and on what), `"clock"` (`"cpu"` or `"wall"`, the one to
            judge by), `"processes"`, `"complete"`, `"steps"` (`"done"` and `"all"`); by mode and name of a way of
            decoding, `"refused"` says why it was not decoded and `"not_tested"` what could not be tested with the
            models.
        plan (`Plan`): what is decoded.
        prompts (`PromptSet`): what is continued.
        records (`Sequence[Record]`): of finished steps, each once.
        judged (`Mapping[tuple[str, str], Sequence[Finding]]`): by mode and name of a way of decoding, outcomes of
            tests that needed the models.
        decode (`Callable[[list[int]], str]`): text of the target's tokens, special ones left out.
        metrics (`Sequence[str]`): names for [`load_metric`].
        proposable (`Mapping[str, Collection[int] | None]`, *optional*): by drafter, the target's tokens that it can
            propose; `None`, and drafters left out, can propose all.

    Returns:
        `dict[str, Any]`: ready for JSON.

    Raises:
        InvalidArgument: a metric cannot be computed prompt by prompt.
        UnusableData: a metric is not there.
    """
    material = Material(
        in_order(records),
        prompts,
        manifest["clock"],
        judged,
        decode,
        [load_metric(name) for name in metrics],
        manifest.get("refused", {}),
        level(len(plan.tested())),
        manifest.get("not_tested", {}),
        proposable or {},
    )
    kinds = material.kinds
    report: dict[str, Any] = {
        "schema": 1,
        "header": manifest["header"],
        "settings": asdict(plan),
        "prompts": {
            **prompts.manifest(),
            "count": len(kinds),
            "kinds": {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
        },
        "processes": manifest["processes"],
        "complete": manifest["complete"],
        "steps": manifest["steps"],
        "modes": [_mode(material, mode, plan.ways(mode)[1:]) for mode in plan.modes],
    }
    report = _plain(report)
    report["conclusions"] = conclusions(report)
    return {**report, "digest": digest(report)}


def _mode(material: Material, mode: str, ways: Sequence[Arm]) -> dict[str, Any]:
    plain = material.calls(mode, PLAIN)
    texts = [text for call in plain for text in call.texts]
    groups: dict[tuple[Any, ...], list[Arm]] = {}
    for arm in ways:
        groups.setdefault((arm.drafter, arm.coupling, arm.layout), []).append(arm)
    step = costs.step_seconds(plain, [look for arm in ways for look in material.looks(mode, arm)])
    told: dict[Arm, dict[str, Any]] = {}
    models = []
    for group in groups.values():
        looks = [look for arm in group for look in material.looks(mode, arm)]
        price = costs.round_costs(looks, [call for arm in group for call in material.calls(mode, arm)])
        told |= {arm: arm_told(material, mode, arm, price, step) for arm in group}
        models += [_model(material, mode, group, price, step, told)] if price is not None and step is not None else []
    return {
        "mode": mode,
        "plain": {
            "tokens": sum(map(tokens, plain)),
            "mean_length": sum(map(len, texts)) / len(texts) if texts else None,
            "seconds_per_token": seconds_per_token(plain, material.clock),
        },
        "arms": [told[arm] for arm in ways],
        "models": [model for model in models if model is not None],
    }


def _model(
    material: Material,
    mode: str,
    group: Sequence[Arm],
    price: costs.RoundCosts,
    step: float,
    told: Mapping[Arm, Mapping[str, Any]],
) -> dict[str, Any] | None:
    """What fixed drafts of every length should bring, beside what those tried did; `None` if none was logged."""
    fixed = [arm for arm in group if arm.num_assistant_tokens is not None and told[arm]["acceptance"] is not None]
    if not fixed:
        return None
    longest = max(fixed, key=lambda arm: arm.num_assistant_tokens or 0)
    speedups = {arm: told[arm]["speed"]["speedup"] for arm in group}
    return {
        "drafter": longest.drafter,
        "coupling": longest.coupling,
        "layout": longest.layout,
        "from": longest.name,
        **costs.predicted(material.looks(mode, longest), price, step),
        "measured": [
            {"num_assistant_tokens": arm.num_assistant_tokens, "speedup": speedups[arm]}
            for arm in sorted(fixed, key=lambda arm: arm.num_assistant_tokens or 0)
            if speedups[arm] is not None
        ],
        "default": next((speedups[arm] for arm in group if arm.num_assistant_tokens is None), None),
    }


def _plain(value: Any) -> Any:
    """The same of lists, dictionaries and finite numbers alone."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
