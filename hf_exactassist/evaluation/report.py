"""Stand-in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from .bootstrap import mean_difference
from .conclusion import conclude_greedy, conclude_sampled
from .data import PromptSet
from .greedy import Divergence, summarise
from .plan import CALL, MAXIMAL, SAMPLED, Arm, Plan
from .records import Call, Comparison, Record
from .sampled import Finding, lengths, likelihoods


def make_report(
    manifest: dict[str, Any],
    plan: Plan,
    prompts: PromptSet,
    records: Sequence[Record],
    judged: dict[tuple[str, str], list[Finding]],
    decode: Callable[[list[int]], str],
    metrics: Sequence[str] = (),
    proposable: Any = None,
) -> dict[str, Any]:
    """Stand-in: enough for the engine's own tests, and nothing of what the report is to be."""
    told = ("header", "prompts", "processes", "complete", "steps")
    texts = [[record.step.arm, record.prompts, record.texts] for record in records if isinstance(record, Call)]
    modes = [_mode(mode, manifest, plan, records, judged) for mode in plan.modes]
    report = {
        "schema": 1,
        **{name: manifest[name] for name in told},
        "settings": asdict(plan),
        "conclusions": [arm["quality"]["conclusion"] for mode in modes for arm in mode["arms"] if arm["quality"]],
        "modes": modes,
    }
    quality = [[arm["name"], arm["quality"]] for mode in modes for arm in mode["arms"]]
    report["digest"] = hashlib.sha256(json.dumps([texts, quality]).encode()).hexdigest()
    return report


def _sizes(calls: list[Call]) -> list[list[int]]:
    return [[len(text)] for call in calls for text in call.texts]


def _mode(mode: str, manifest: Any, plan: Plan, records: Any, judged: Any) -> dict[str, Any]:
    arms = [_arm(mode, arm, manifest, records, judged) for arm in plan.ways(mode)[1:]]
    return {"mode": mode, "arms": arms, "models": []}


def _calls(mode: str, arm: str, records: Any) -> list[Call]:
    return [r for r in records if r.step.kind == CALL and r.step.arm == arm and r.step.unit.mode == mode]


def _arm(mode: str, arm: Arm, manifest: Any, records: Any, judged: Any) -> dict[str, Any]:
    own, plain = _calls(mode, arm.name, records), _calls(mode, "plain", records)
    told = {"name": arm.name, **asdict(arm), "refused": manifest["refused"][mode].get(arm.name)}
    if not own or len(own) != len(plain):
        return {**told, "quality": None, "acceptance": None, "speed": None}
    drafted, accepted, rounds = (sum(call.stats[name] for call in own if call.stats) for name in _COUNTED)

    def per_token(calls: list[Call]) -> float:
        return sum(c.seconds[manifest["clock"]] for c in calls) / sum(len(t) for c in calls for t in c.texts)

    speedup = per_token(plain) / per_token(own) if per_token(own) else None
    divergences = [
        None if one is None else Divergence(**one)
        for record in records
        if isinstance(record, Comparison) and record.step.unit.mode == mode
        for one in record.divergences.get(arm.name, [])
    ]
    findings = list(judged.get((mode, arm.name), []))
    if mode == SAMPLED and arm.coupling == MAXIMAL:
        first, second = ([value for c in calls for value in c.likelihoods or []] for calls in (own, plain))
        if len(first) > 1:
            findings.append(likelihoods(first, second))
            mean_difference(first, second)
        findings.append(lengths(_sizes(own), _sizes(plain)))
    conclusion = conclude_greedy(summarise(divergences)) if divergences else ""
    if findings:
        conclusion = conclude_sampled(findings)
    return {
        **told,
        "acceptance": {
            "rate": accepted / max(drafted, 1),
            "tokens_per_round": 1 + accepted / max(rounds, 1),
            "drafted": drafted,
            "accepted": accepted,
        },
        "speed": {"speedup": speedup, "interval": None},
        "quality": {
            "texts": len(divergences) or sum(len(c.texts) for c in own),
            "identical": sum(one is None for one in divergences) if divergences else None,
            "findings": [
                {**{k: v if v != float("inf") else None for k, v in asdict(f).items()}, "differs": f.differs}
                for f in findings
            ],
            "not_tested": manifest["not_tested"].get(mode, {}).get(arm.name, []),
            "conclusion": conclusion,
        },
    }


_COUNTED = ("drafted", "accepted", "row_rounds")
