"""What a round takes, part by part and by draft length, and what that makes of acceptance (contract 0x05C).

The acceptance log times the stages of a round on the wall clock. `propose` is drafting. `score` is verifying, and so
is `make_ready` in the retained layout, where it reads the last published token. `process`, `judge` and otherwise
`make_ready`, which lets finished rows go, are work on state. What the rounds of the timed calls took beyond all these
(staging above all) is `other`; the log's own work is in none. On an accelerator a stage ends when its work has been
launched, so that waiting is counted where a result is first looked at.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import ledger
from .acceptance import survivals
from .records import Call, Look
from .rounds import LAPS, row_rounds


DRAFT, VERIFY, STATE, OTHER = PARTS = ("draft", "verify", "state", "other")


@dataclass(frozen=True)
class Round:
    """Wall seconds of one round's stages.

    Attributes:
        length (`int`): tokens of the longest draft.
        draft (`float`): drafting.
        verify (`float`): the target's forwards.
        state (`float`): processors, judging, rows let go.
    """

    length: int
    draft: float
    verify: float
    state: float

    @property
    def total(self) -> float:
        """All stages."""
        return self.draft + self.verify + self.state


def timed_rounds(looks: Sequence[Look]) -> list[Round]:
    """What rounds took, the reading of prompts left out."""
    found = []
    for event in (event for look in looks for event in look.events):
        if event["event"] != "round" or not event["generation"]:
            continue
        ready, draft, verify, process, judge = (event["seconds"].get(lap, 0.0) for lap in LAPS)
        reads = event["layout"] == "retained"
        state = process + judge + (0.0 if reads else ready)
        length = max(row["drafted"] for row in event["rows"])
        found.append(Round(length, draft, verify + (ready if reads else 0.0), state))
    return found


def beyond_stages(looks: Sequence[Look], calls: Sequence[Call]) -> float:
    """Seconds of a round beyond its stages, on average: timed calls' rounds less the stages of the logged ones.

    Args:
        looks (`Sequence[Look]`): logged calls.
        calls (`Sequence[Call]`): timed calls; those on the units that were logged count.

    Returns:
        `float`: 0 where the timed rounds took no longer, as noise can make it, or none has counters.
    """
    logged = {look.step.unit: look for look in looks}
    both = [(call.stats, logged[call.step.unit]) for call in calls if call.stats and call.step.unit in logged]
    rounds = sum(stats["rounds"] for stats, _ in both if stats)
    if not rounds:
        return 0.0
    stages = [one.total for one in timed_rounds([look for _, look in both])]
    whole = sum(stats["seconds"] for stats, _ in both if stats) / rounds
    return max(0.0, whole - sum(stages) / len(stages)) if stages else 0.0


def time_split(looks: Sequence[Look], calls: Sequence[Call]) -> dict[str, float] | None:
    """Shares of a round's time; `None` without rounds. Arguments as in [`beyond_stages`]."""
    rounds = timed_rounds(looks)
    parts = {part: sum(getattr(one, part) for one in rounds) for part in (DRAFT, VERIFY, STATE)}
    parts[OTHER] = beyond_stages(looks, calls) * len(rounds)
    whole = sum(parts.values())
    return {part: seconds / whole for part, seconds in parts.items()} if whole else None


@dataclass(frozen=True)
class RoundCosts:
    """What rounds cost by draft length: straight lines, in wall seconds.

    Attributes:
        draft (`tuple[float, float]`): drafting no token and each further token, both 0 or more.
        verify (`tuple[float, float]`): the target's forwards over no draft token, and each further one.
        rest (`float`): what a round takes beside these.
    """

    draft: tuple[float, float]
    verify: tuple[float, float]
    rest: float

    def at(self, length: int) -> float:
        """A round's cost with drafts of this length."""
        draft = self.draft[0] + length * self.draft[1] if length else 0.0
        verify = self.verify[0] + length * self.verify[1]
        return ledger.CostParts(draft=draft, verify=verify, state=self.rest).total


def round_costs(looks: Sequence[Look], calls: Sequence[Call]) -> RoundCosts | None:
    """Fits [`RoundCosts`] to the medians of each draft length that occurred, weighted by how often it did.

    Where one length alone occurred, drafting is taken to cost the same for every token, and the target's forward not
    to depend on how many it reads.

    Args:
        looks (`Sequence[Look]`): logged calls of ways that differ in how much they draft alone.
        calls (`Sequence[Call]`): timed calls of the same.

    Returns:
        `RoundCosts`, *optional*: `None` without rounds that took time.
    """
    rounds = timed_rounds(looks)
    if not any(one.total for one in rounds):
        return None
    drafting = [(one.length, one.draft) for one in rounds if one.length]
    rest = statistics.median(one.state for one in rounds) + beyond_stages(looks, calls)
    verify = _line([(one.length, one.verify) for one in rounds], through_origin=False)
    return RoundCosts(_line(drafting, through_origin=True), verify, rest)


def step_seconds(plain: Sequence[Call], looks: Sequence[Look]) -> float | None:
    """Wall seconds of a step of plain decoding.

    What reading the prompts took is known from the logged calls on the same unit, and left out.

    Args:
        plain (`Sequence[Call]`): timed calls of plain decoding.
        looks (`Sequence[Look]`): logged calls of other ways on the same prompts.

    Returns:
        `float`, *optional*: the median over units; `None` where no unit has both and more than one step.
    """
    reading: dict[tuple[str, int], list[float]] = {}
    for look in looks:
        for event in look.events:
            if event["event"] == "round" and event["generation"] == 0:
                unit = look.step.unit
                reading.setdefault((unit.mode, unit.batch), []).append(sum(event["seconds"].values()))
    found = []
    for call in plain:
        prompt = reading.get((call.step.unit.mode, call.step.unit.batch))
        steps = max(map(len, call.texts)) - 1
        if prompt and steps > 0:
            found.append((call.seconds["wall"] - statistics.median(prompt)) / steps)
    step = statistics.median(found) if found else 0.0
    return step if step > 0 else None


def expectations(looks: Sequence[Look], costs: RoundCosts | None, step: float | None) -> dict[str, float | None]:
    """What acceptance as it was should bring at such costs.

    Args:
        looks (`Sequence[Look]`): logged calls of one way of decoding.
        costs (`RoundCosts`, *optional*): of its rounds.
        step (`float`, *optional*): seconds of a plain step.

    Returns:
        `dict[str, float | None]`: `expected_speedup` of a row behind its prompt that no other holds up, and
        `break_even_acceptance` for drafts of the usual length; `None` where nothing is known, nothing was drafted, or
        even perfect drafts do not pay.
    """
    result: dict[str, float | None] = {"expected_speedup": None, "break_even_acceptance": None}
    lengths = [one.length for one in timed_rounds(looks)]
    if costs is None or step is None or not lengths:
        return result
    rows = [part for look in looks for part in row_rounds(look.events) if part.generation > 0]
    progress = sum(len(part.published) for part in rows) / len(rows)
    cost = sum(costs.at(length) for length in lengths) / len(lengths)
    result["expected_speedup"] = ledger.speedup(progress, cost, step)
    drafts = [length for length in lengths if length]
    if drafts:
        usual = statistics.mode(sorted(drafts, reverse=True))
        result["break_even_acceptance"] = ledger.break_even_acceptance(usual, costs.at(usual), step)
    return result


def predicted(looks: Sequence[Look], costs: RoundCosts, step: float) -> dict[str, Any]:
    """Speed-up that fixed drafts of every length should have, up to the longest that was logged.

    Args:
        looks (`Sequence[Look]`): logged calls of the way with the longest fixed drafts.
        costs (`RoundCosts`): of its rounds.
        step (`float`): seconds of a plain step, which is what no drafts cost.

    Returns:
        `dict[str, Any]`: `lengths`, `speedup` and `best_length`.
    """
    rows = [part for look in looks for part in row_rounds(look.events) if part.generation > 0]
    progress = ledger.progress_by_length(survivals(rows)[1])
    prices = [step, *(costs.at(length) for length in range(1, len(progress)))]
    return {
        "lengths": list(range(len(progress))),
        "speedup": [ledger.speedup(more, price, step) for more, price in zip(progress, prices, strict=True)],
        "best_length": ledger.best_length(progress, prices),
    }


def _line(points: Sequence[tuple[int, float]], through_origin: bool) -> tuple[float, float]:
    """Intercept and slope, neither below 0, of the weighted least squares line through medians."""
    by_length: dict[int, list[float]] = {}
    for length, seconds in points:
        by_length.setdefault(length, []).append(seconds)
    if not by_length:
        return 0.0, 0.0
    lengths = np.array(sorted(by_length), dtype=np.float64)
    medians = np.array([statistics.median(by_length[int(length)]) for length in lengths])
    weights = np.array([len(by_length[int(length)]) for length in lengths], dtype=np.float64)
    centre, mean = np.average(lengths, weights=weights), np.average(medians, weights=weights)
    if len(lengths) == 1:
        return (0.0, float(mean / centre)) if through_origin else (float(mean), 0.0)
    slope = np.average((lengths - centre) * (medians - mean), weights=weights)
    slope = max(0.0, slope / np.average((lengths - centre) ** 2, weights=weights))
    if mean < slope * centre:
        # a line through the origin
        return 0.0, float(np.average(lengths * medians, weights=weights) / np.average(lengths**2, weights=weights))
    return float(mean - slope * centre), float(slope)
