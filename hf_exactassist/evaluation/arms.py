"""What the report says of one way of decoding."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from . import costs, findings
from .acceptance import acceptance
from .causes import diagnosis
from .data import PromptSet
from .metrics import Metric, metric_told
from .plan import GREEDY, PLAIN, SHARED_NOISE, Arm
from .records import Call, Comparison, Look, Record
from .rounds import row_rounds
from .sampled import Finding
from .speed import paired, speed


# tests of laws take samples to be independent
_COMPARED = "The law is not tested beside: texts drawn with plain decoding's own noise are compared token by token."


@dataclass(frozen=True)
class Material:
    """What a report is made of; see [`~hf_exactassist.evaluation.report.make_report`].

    Attributes:
        records (`Sequence[Record]`): in the order of the plan.
        prompts (`PromptSet`): what is continued.
        clock (`str`): the one to judge by.
        judged (`Mapping[tuple[str, str], Sequence[Finding]]`): tests that needed the models.
        decode (`Callable[[list[int]], str]`): text of tokens.
        metrics (`Sequence[Metric]`): a task's own.
        refused (`Mapping[str, Mapping[str, str]]`): by mode and way, why it was not decoded.
        alpha (`float`): level of each test of a law.
        not_tested (`Mapping[str, Mapping[str, Sequence[str]]]`): by mode and way, why tests are
            missing that need the models.
        proposable (`Mapping[str, Collection[int] | None]`): by drafter, what it can propose.
    """

    records: Sequence[Record]
    prompts: PromptSet
    clock: str
    judged: Mapping[tuple[str, str], Sequence[Finding]]
    decode: Callable[[list[int]], str]
    metrics: Sequence[Metric]
    refused: Mapping[str, Mapping[str, str]]
    alpha: float
    not_tested: Mapping[str, Mapping[str, Sequence[str]]]
    proposable: Mapping[str, Collection[int] | None]

    @cached_property
    def kinds(self) -> list[str]:
        """Of each prompt, its kind."""
        return [prompt.kind for prompt in self.prompts.prompts]

    def calls(self, mode: str, arm: Arm) -> list[Call]:
        """Timed calls."""
        return [one for one in self._of(mode) if isinstance(one, Call) and one.step.arm == arm.name]

    def looks(self, mode: str, arm: Arm) -> list[Look]:
        """Logged calls."""
        return [one for one in self._of(mode) if isinstance(one, Look) and one.step.arm == arm.name]

    def comparisons(self, mode: str) -> list[Comparison]:
        """Texts compared."""
        return [one for one in self._of(mode) if isinstance(one, Comparison)]

    def _of(self, mode: str) -> list[Record]:
        return [record for record in self.records if record.step.unit.mode == mode]


def arm_told(
    material: Material, mode: str, arm: Arm, price: costs.RoundCosts | None, step: float | None
) -> dict[str, Any]:
    """Acceptance, speed, quality and diagnosis of one way of decoding.

    Args:
        material (`Material`): records and what explains them.
        mode (`str`): greedy or sampled.
        arm (`Arm`): the way.
        price (`RoundCosts`, *optional*): of its rounds.
        step (`float`, *optional*): seconds of a plain step.
    """
    calls, looks = material.calls(mode, arm), material.looks(mode, arm)
    rounds = [part for look in looks for part in row_rounds(look.events)]
    refusal = material.refused.get(mode, {}).get(arm.name)
    return {
        "name": arm.name,
        **asdict(arm),
        "refused": refusal,
        "acceptance": acceptance(looks, calls, material.kinds),
        "speed": {
            **speed(calls, material.calls(mode, PLAIN), material.kinds, material.clock),
            "time_split": costs.time_split(looks, calls),
            **costs.expectations(looks, price, step),
            "clock": material.clock,
        },
        "quality": _quality(material, mode, arm, refusal),
        "diagnosis": diagnosis(rounds, material.decode, material.proposable.get(arm.drafter or "")),
    }


def _quality(material: Material, mode: str, arm: Arm, refusal: str | None) -> dict[str, Any]:
    calls, plain = material.calls(mode, arm), material.calls(mode, PLAIN)
    told: dict[str, Any] = {
        "texts": 0,
        "identical": None,
        "identity_rate": None,
        "divergences": [],
        "findings": [],
        "not_tested": [],
        "likelihood": None,
        "metrics": [],
    }
    if refusal is not None:
        return {**told, "conclusion": "Nothing is shown: this way of decoding was refused."}
    if mode == GREEDY or arm.coupling == SHARED_NOISE:
        compared = findings.texts_compared(material.comparisons(mode), arm.name, mode)
        summary, conclusion = findings.conclude_texts(compared, mode)
        told["divergences"] = findings.partings_told(compared, calls, plain, material.decode)
        if summary is not None:
            told |= {
                "texts": summary.texts,
                "identical": summary.identical,
                "identity_rate": summary.identity_rate,
            }
        told["not_tested"] += [_COMPARED] if mode != GREEDY else []
    else:
        untested = material.not_tested.get(mode, {}).get(arm.name, ())
        tested = findings.tests(calls, plain, material.judged.get((mode, arm.name), ()), untested, material.alpha)
        told["texts"] = sum(len(ours.texts) for ours, _ in paired(calls, plain))
        told["findings"] = [findings.finding_told(finding) for finding in tested.findings]
        told["not_tested"] += tested.not_tested
        if tested.likelihood is not None:
            told["likelihood"] = {key: getattr(tested.likelihood, key) for key in ("mean", "low", "high", "level")}
        conclusion = tested.conclusion()
    if mode == GREEDY:
        # other repeats have the same texts
        calls = [call for call in calls if call.step.unit.repeat == 0]
    for metric in material.metrics:
        outcome = metric_told(metric, calls, plain, material.prompts, material.decode)
        told["not_tested" if isinstance(outcome, str) else "metrics"].append(outcome)
    return {**told, "conclusion": conclusion}
