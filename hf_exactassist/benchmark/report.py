"""From samples to figures: what one case of a benchmark says, as plain data for JSON, tables and plots.

All times are seconds; what is called a speed-up is plain over variant, of medians of time per token.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from .. import ledger
from ..telemetry import AssistStats
from . import arithmetic
from .advice import advice
from .clocks import CLOCKS
from .forwards import Forwards
from .measuring import GREEDY, Case, Sample
from .variants import OURS, PLAIN, Variant


def figures(case: Case, clock: str) -> dict[str, Any]:
    """Everything that follows from the samples of a case; repeats that were broken off do not count.

    Args:
        case (`Case`): from [`~hf_exactassist.benchmark.measuring.measure`].
        clock (`str`): `"cpu"` or `"wall"`, the one to judge by.

    Returns:
        `dict[str, Any]`: `mode`, `batch_size`, `repeats` (complete ones), `forwards`, `acceptance`, `variants`,
        `advice`. What was not measured is `None`.
    """
    found = _Figures(case, clock)
    variants = [found.variant(way) for way in case.samples]
    result: dict[str, Any] = {
        "mode": case.mode,
        "batch_size": case.batch_size,
        "batches": [asdict(batch) for batch in case.batches],
        "repeats": len(found.repeats),
        "forwards": found.forwards(),
        "acceptance": found.acceptance(),
        "variants": variants,
    }
    return {**result, "advice": advice(result)}


class _Figures:
    """The arithmetic of one case."""

    def __init__(self, case: Case, clock: str) -> None:
        self.case, self.clock = case, clock
        self.repeats = _complete(case)
        self.costs = self._median_costs()

    # --- single forwards

    def of_forwards(self, pick: Callable[[Forwards], Sequence[Any]], batch: int | None = None) -> list[float]:
        """Seconds of some single forwards, on all batches or one."""
        chosen = [forwards for number, forwards in self.case.forwards if batch in (None, number)]
        return [getattr(taken, self.clock) for forwards in chosen for taken in pick(forwards)]

    def _median_costs(self) -> tuple[float, dict[int, float]] | None:
        """Draft step, and target forwards by width."""
        if not self.case.forwards:
            return None
        widths = self.case.forwards[0][1].target
        by_width = {width: statistics.median(self.target(width)) for width in widths}
        return statistics.median(self.of_forwards(lambda one: one.draft_steps)), by_width

    def target(self, width: int) -> list[float]:
        """Seconds of the target's forwards over so many tokens."""
        return self.of_forwards(lambda one: one.target[width])

    def prefill(self, drafts: bool) -> float:
        """What reading all prompts takes, by the target and, where it drafts, by the assistant."""
        total = 0.0
        for batch in {number for number, _ in self.case.forwards}:
            total += statistics.median(self.of_forwards(lambda one: [one.target_prefill], batch))
            if drafts:
                total += statistics.median(self.of_forwards(lambda one: [one.draft_prefill], batch))
        return total

    def forwards(self) -> dict[str, Any]:
        """Costs of single forwards and what follows for every draft length."""
        if self.costs is None:
            return {"reason": self.case.no_forwards or "not measured", "target": None, "draft_step": None}
        draft_step, costs = self.costs
        lengths = range(1, max(costs))
        break_even = {
            length: ledger.break_even_acceptance(length, arithmetic.round_seconds(length, draft_step, costs), costs[1])
            for length in lengths
        }
        return {
            "reason": None,
            "target": {width: asdict(arithmetic.quartiles(self.target(width))) for width in costs},
            "draft_step": asdict(arithmetic.quartiles(self.of_forwards(lambda one: one.draft_steps))),
            "target_prefill": self.prefill(False),
            "draft_prefill": self.prefill(True) - self.prefill(False),
            "cost_ratio": draft_step / costs[1],
            "break_even_acceptance": break_even,
            "samples": [{"batch": batch, **asdict(one)} for batch, one in self.case.forwards],
        }

    # --- acceptance

    def acceptance(self) -> dict[str, Any] | None:
        """How drafts fare by position, from the longest fixed drafts, and the speed-ups forwards alone would give."""
        fixed = [way for way in self.case.samples if way.kind == OURS and way.num_assistant_tokens and self.kept(way)]
        if not fixed:
            return None
        longest = max(fixed, key=lambda way: way.num_assistant_tokens or 0)
        stats = _total(self.kept(longest))
        surviving = ledger.counted_survival(stats.drafted_by_position, stats.accepted_by_position)
        expected = None
        if self.costs is not None:
            lengths = range(1, len(surviving) + 1)
            expected = {length: arithmetic.expected_speedup(surviving, length, *self.costs) for length in lengths}
        return {
            "from": longest.name,
            "survival": surviving,
            "by_position": ledger.reach_rates(surviving),
            "expected_speedup": expected,
        }

    # --- variants

    def kept(self, way: Variant, kind: str | None = None) -> list[Sample]:
        """Samples of complete repeats, of one kind of text or all."""
        batches = self.case.batches
        return [
            sample
            for sample in self.case.samples[way]
            if sample.repeat in self.repeats and kind in (None, batches[sample.batch].kind)
        ]

    def per_token(self, samples: Sequence[Sample], clock: str) -> list[float]:
        """Seconds per token of each repeat."""
        return [
            sum(getattr(sample.taken, clock) for sample in turn) / max(1, sum(sample.new_tokens for sample in turn))
            for turn in self.by_repeat(samples)
        ]

    def by_repeat(self, samples: Sequence[Sample]) -> list[list[Sample]]:
        """The samples of each repeat."""
        return [[sample for sample in samples if sample.repeat == repeat] for repeat in self.repeats]

    def variant(self, way: Variant) -> dict[str, Any]:
        """All figures of a variant."""
        result: dict[str, Any] = {
            "name": way.name,
            "kind": way.kind,
            "num_assistant_tokens": way.num_assistant_tokens,
            "reason": self.case.refused.get(way) or (None if self.repeats else "not measured"),
            "measured": self.measured(way),
            "text": self.text(way),
            "by_kind": self.by_kind(way),
            "inside": self.inside(way),
            "rounds": self.rounds(way),
            "samples": [asdict(sample) for sample in self.case.samples[way]],
        }
        return result

    def measured(self, way: Variant, kind: str | None = None) -> dict[str, Any] | None:
        """Time per token by both clocks, and the speed-ups."""
        ours, plain = self.kept(way, kind), self.kept(Variant(PLAIN), kind)
        if not ours or not plain:
            return None
        result: dict[str, Any] = {}
        for clock in CLOCKS:
            seconds, before = self.per_token(ours, clock), self.per_token(plain, clock)
            repeats = arithmetic.quartiles([old / new for old, new in zip(before, seconds, strict=True)])
            result[clock] = {
                "seconds_per_token": asdict(arithmetic.quartiles(seconds)),
                "speedup": statistics.median(before) / statistics.median(seconds),
                "speedup_of_repeats": asdict(repeats),
            }
        return {**result, **result[self.clock]}

    def by_kind(self, way: Variant) -> dict[str, dict[str, float | None]]:
        """Speed-up and accepted drafts per round for each kind of text."""
        result: dict[str, dict[str, float | None]] = {}
        for kind in dict.fromkeys(batch.kind for batch in self.case.batches):
            measured = self.measured(way, kind)
            if measured is not None:
                stats = _total(self.kept(way, kind)) if way.kind == OURS else None
                per_round = stats.accepted / max(1, _drafts(stats)) if stats is not None else None
                result[kind] = {"speedup": measured["speedup"], "accepted_per_round": per_round}
        return result

    def text(self, way: Variant) -> dict[str, Any] | None:
        """Whether greedy text is the plain one, and where it first is not."""
        if self.case.mode != GREEDY or not self.case.samples[way]:
            return None
        found = self.case.differences.get(way)
        return {"identical": found is None, "first_difference": None if found is None else asdict(found)}

    def inside(self, way: Variant) -> dict[str, float] | None:
        """Shares of the wall time that forwards take, in a run with hooks."""
        found = self.case.shares.get(way)
        if found is None:
            return None
        target, draft = found["target"] / found["total"], found["draft"] / found["total"]
        return {**found, "target_share": target, "draft_share": draft, "forward_share": target + draft}

    def rounds(self, way: Variant) -> dict[str, Any] | None:
        """What decoding behind the prompts is made of; for plain decoding a round is a step."""
        samples = self.kept(way)
        if not samples or way.kind not in (PLAIN, OURS):
            return None
        stats = _total(samples) if way.kind == OURS else None
        counts = [
            sum(sample.steps - 1 if sample.stats is None else sample.stats.rounds for sample in turn)
            for turn in self.by_repeat(samples)
        ]
        result: dict[str, Any] = {
            "rounds": sum(counts),
            "stats": None if stats is None else asdict(stats),
            "acceptance_rate": None if stats is None else stats.acceptance_rate,
            "tokens_per_round": None if stats is None else 1 + stats.accepted / max(1, _drafts(stats)),
            "seconds": None,
            "efficiency": None,
            "expected_speedup": None,
            "break_even_acceptance": None,
        }
        if self.costs is None or not all(counts):
            return result
        draft_step, costs = self.costs
        lengths = {0: 1} if stats is None else arithmetic.draft_lengths(stats.rounds, stats.drafted_by_position)
        forwards = arithmetic.mean_round_seconds(lengths, draft_step, costs)
        seconds = statistics.median(self.round_seconds(way))
        result |= {"seconds": seconds, "efficiency": forwards / seconds}
        if stats is not None:
            result["expected_speedup"] = ledger.speedup(result["tokens_per_round"], forwards, costs[1])
        if way.num_assistant_tokens is not None:
            step = statistics.median(self.round_seconds(Variant(PLAIN)))
            # where reading the prompts took nearly all the time, what is left can be noise
            if seconds > 0 and step > 0:
                number = way.num_assistant_tokens
                result["break_even_acceptance"] = ledger.break_even_acceptance(number, seconds, step)
        return result

    def round_seconds(self, way: Variant) -> list[float]:
        """Seconds of a round, the reading of prompts taken off, for each repeat."""
        prefill = self.prefill(way.kind != PLAIN)
        return [
            (sum(getattr(sample.taken, self.clock) for sample in turn) - prefill)
            / max(1, sum(sample.steps - 1 if sample.stats is None else sample.stats.rounds for sample in turn))
            for turn in self.by_repeat(self.kept(way))
        ]


def _complete(case: Case) -> list[int]:
    """Repeats in which every variant decoded every batch."""
    running = [samples for way, samples in case.samples.items() if way not in case.refused]
    repeats = sorted({sample.repeat for samples in running for sample in samples})
    wanted = len(case.batches)

    def whole(repeat: int) -> bool:
        return all(sum(sample.repeat == repeat for sample in samples) == wanted for samples in running)

    return [repeat for repeat in repeats if whole(repeat)]


def _total(samples: Sequence[Sample]) -> AssistStats:
    return sum((sample.stats for sample in samples if sample.stats is not None), AssistStats())


def _drafts(stats: AssistStats) -> int:
    """Rounds of single rows."""
    return sum(arithmetic.draft_lengths(stats.rounds, stats.drafted_by_position).values())
