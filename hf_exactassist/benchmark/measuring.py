"""Runs all variants in turn and keeps every sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..telemetry import AssistStats
from .clocks import Taken, timed
from .forwards import Forwards, time_forwards
from .inside import Watch, watching
from .pair import Pair
from .prompts import Batch, Prompt, batches
from .variants import OURS, PLAIN, TRANSFORMERS, Decoded, Variant, decode, variants, why_not


GREEDY, SAMPLED = MODES = ("greedy", "sampled")


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        numbers (`tuple[int, ...]`): draft lengths.
        modes (`tuple[str, ...]`): of `MODES`.
        batch_sizes (`tuple[int, ...]`): prompts per call.
        repeats (`int`): timed runs of each variant over all prompts.
        max_new_tokens (`int`): tokens per prompt.
        temperature (`float`): of sampled calls, which have no other warper.
        seed (`int`): of sampled calls; every variant starts a call from the same.
        with_transformers (`bool`): whether Transformers' assisted generation takes part.
    """

    numbers: tuple[int, ...]
    modes: tuple[str, ...] = (GREEDY,)
    batch_sizes: tuple[int, ...] = (1,)
    repeats: int = 5
    max_new_tokens: int = 64
    temperature: float = 1.0
    seed: int = 0
    with_transformers: bool = True

    def steps(self, prompts: Sequence[Prompt]) -> int:
        """How often `advance` is called in [`measure`], if nothing is left out."""
        ways = len(variants(self.numbers, self.with_transformers))
        calls = sum(len(batches(prompts, size)) for size in self.batch_sizes)
        warm_up = ways * len(self.batch_sizes)
        return len(self.modes) * (warm_up + calls * ((ways + 1) * self.repeats + ways))

    def settings(self, mode: str) -> dict[str, Any]:
        """Generation settings of a mode."""
        drawn = {"do_sample": True, "temperature": self.temperature, "top_k": 0, "top_p": 1.0}
        return {"max_new_tokens": self.max_new_tokens, **(drawn if mode == SAMPLED else {"do_sample": False})}


@dataclass(frozen=True)
class Sample:
    """One timed call.

    Attributes:
        repeat (`int`): number of the repeat.
        batch (`int`): number of the batch.
        taken (`Taken`): its time.
        new_tokens (`int`): tokens of all rows.
        steps (`int`): tokens of the longest row.
        stats (`AssistStats`, *optional*): counters, for this library's calls.
    """

    repeat: int
    batch: int
    taken: Taken
    new_tokens: int
    steps: int
    stats: AssistStats | None


@dataclass(frozen=True)
class Difference:
    """Where a greedy text first leaves the plain one.

    Attributes:
        prompt (`int`): number of the prompt.
        position (`int`): number of the new token.
        plain (`int`, *optional*): the token there; `None` if the text has ended.
        other (`int`, *optional*): the variant's.
    """

    prompt: int
    position: int
    plain: int | None
    other: int | None


@dataclass
class Case:
    """All that was measured in one mode with one batch size.

    Attributes:
        mode (`str`): greedy or sampled.
        batch_size (`int`): rows of each call.
        batches (`list[Batch]`): which prompts were decoded together.
        samples (`dict[Variant, list[Sample]]`): by variant.
        refused (`dict[Variant, str]`): variants that cannot be measured, and why.
        differences (`dict[Variant, Difference]`): variants whose greedy text is not the plain one.
        forwards (`list[tuple[int, Forwards]]`): single forwards, with the number of the batch they were timed on.
        no_forwards (`str`): why there are none.
        shares (`dict[Variant, dict[str, float]]`): time inside of forwards, from a run of its own.
    """

    mode: str
    batch_size: int
    batches: list[Batch]
    samples: dict[Variant, list[Sample]]
    refused: dict[Variant, str] = field(default_factory=dict)
    differences: dict[Variant, Difference] = field(default_factory=dict)
    forwards: list[tuple[int, Forwards]] = field(default_factory=list)
    no_forwards: str = ""
    shares: dict[Variant, dict[str, float]] = field(default_factory=dict)


def measure(
    pair: Pair, plan: Plan, prompts: Sequence[Prompt], cases: list[Case], advance: Callable[[], None] = lambda: None
) -> None:
    """Measures everything a plan asks for.

    Args:
        pair (`Pair`): the models.
        plan (`Plan`): what to measure.
        prompts (`Sequence[Prompt]`): what is continued; at least one.
        cases (`list[Case]`): filled as results come, so that they are there whatever ends the measurement.
        advance (`Callable`): called after every call and every round of single forwards.

    Raises:
        ExactAssistError: the library refuses the pair.
    """
    rows = [pair.tokenizer(prompt.text)["input_ids"] for prompt in prompts]
    for mode in plan.modes:
        for size in plan.batch_sizes:
            ways = variants(plan.numbers, plan.with_transformers)
            case = Case(mode, size, batches(prompts, size), {way: [] for way in ways})
            cases.append(case)
            _Run(pair, plan, rows, case, advance).all()


class _Run:
    """Fills one case."""

    def __init__(
        self, pair: Pair, plan: Plan, rows: Sequence[Sequence[int]], case: Case, advance: Callable[[], None]
    ) -> None:
        self.pair, self.plan, self.case, self.advance = pair, plan, case, advance
        self.settings = plan.settings(case.mode)
        self.inputs = [[rows[row] for row in batch.rows] for batch in case.batches]
        # widths 1 and 2 whatever is drafted: a plain step, and the shortest draft's
        self.widths = sorted({1, 2, *(number + 1 for number in plan.numbers)})

    def all(self) -> None:
        """Warms up, times, and looks inside."""
        self.warm_up()
        for repeat in range(self.plan.repeats):
            for batch in range(len(self.inputs)):
                plain = self.turn(repeat, batch)
                self.single_forwards(batch, plain)
                self.advance()
        with watching(self.pair) as watch:
            self.decode(Variant(OURS), 0, 0)
            for batch in range(len(self.inputs)):
                for way in self.ways:
                    self.look_inside(watch, way, batch)
                    self.advance()

    @property
    def ways(self) -> list[Variant]:
        """Variants that are not refused."""
        return [way for way in self.case.samples if way not in self.case.refused]

    def warm_up(self) -> None:
        """Every variant once; what Transformers refuses is left out from here on."""
        for way in list(self.case.samples):
            reason = why_not(self.pair, way)
            if not reason:
                try:
                    self.decode(way, 0, 0)
                except Exception as error:
                    if way.kind != TRANSFORMERS:
                        raise
                    reason = f"Transformers refuses: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            if reason:
                self.case.refused[way] = reason
            self.advance()

    def turn(self, repeat: int, batch: int) -> Decoded:
        """Times every variant on a batch, beginning with another one each time; gives what plain decoding gave."""
        ways, decoded = self.ways, {}
        first = (repeat + batch) % len(ways)
        for way in ways[first:] + ways[:first]:
            made, taken = timed(lambda way=way: self.decode(way, repeat, batch), self.pair.device)  # type: ignore[misc]
            decoded[way] = made
            self.case.samples[way].append(Sample(repeat, batch, taken, made.new_tokens, made.steps, made.stats))
            self.advance()
        plain = decoded[Variant(PLAIN)]
        if self.case.mode == GREEDY:
            for way, made in decoded.items():
                found = first_difference(plain.texts, made.texts, self.case.batches[batch].rows)
                if found is not None:
                    self.case.differences.setdefault(way, found)
        return plain

    def single_forwards(self, batch: int, plain: Decoded) -> None:
        """Times forwards between two turns, so that they see the same load."""
        if self.case.no_forwards:
            return
        try:
            timed_here = time_forwards(self.pair, self.inputs[batch], plain.texts, self.widths)
        except Exception as error:
            # a class that wants other arguments than `generate` usually gives
            self.case.no_forwards = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            return
        self.case.forwards.append((batch, timed_here))

    def look_inside(self, watch: Watch, way: Variant, batch: int) -> None:
        """Adds up the time inside of forwards."""
        found = watch.shares(lambda: self.decode(way, 0, batch))
        before = self.case.shares.get(way, {})
        self.case.shares[way] = {name: before.get(name, 0) + value for name, value in found.items()}

    def decode(self, way: Variant, repeat: int, batch: int) -> Decoded:
        """One call; sampled ones begin alike for every variant."""
        if self.case.mode == SAMPLED:
            torch.manual_seed(self.plan.seed + repeat * len(self.inputs) + batch)
        return decode(self.pair, way, self.inputs[batch], self.settings)


def first_difference(
    plain: Sequence[Sequence[int]], other: Sequence[Sequence[int]], prompts: Sequence[int]
) -> Difference | None:
    """Where two results of one call first differ.

    Args:
        plain (`Sequence[Sequence[int]]`): new tokens of each row.
        other (`Sequence[Sequence[int]]`): the same of another variant.
        prompts (`Sequence[int]`): the rows' prompts.

    Returns:
        `Difference`, *optional*: in the first row that differs; `None` if none does.
    """
    for ours, theirs, prompt in zip(plain, other, prompts, strict=True):
        if tuple(ours) != tuple(theirs):
            shorter = min(len(ours), len(theirs))
            place = next((place for place in range(shorter) if ours[place] != theirs[place]), shorter)
            tokens = (row[place] if place < len(row) else None for row in (ours, theirs))
            return Difference(prompt, place, *tokens)
    return None
