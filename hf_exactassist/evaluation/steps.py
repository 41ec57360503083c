"""Carries out the steps of a plan, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch

from ..benchmark.clocks import Taken
from ..errors import ExactAssistError, NotReproducible
from .data import PromptSet
from .decoding import Decoded, Decoder, Listener, token_rows
from .greedy import compare_texts
from .models import Models
from .plan import CALL, GREEDY, LOOK, PLAIN, SAMPLED, SHARED_NOISE, Arm, Plan, Step, Unit
from .records import Call, Comparison, Look, Record
from .rescoring import Rescorer


# makes a call and says what it took
Timed = Callable[[Callable[[], Decoded], torch.device], tuple[Decoded, Taken]]


class Steps:
    """What a step does.

    Args:
        models (`Models`): target and assistants.
        prompts (`PromptSet`): what is continued.
        plan (`Plan`): how.
        decoder (`Decoder`): carries out calls.
        timed (`Callable`): times them, as [`~hf_exactassist.benchmark.clocks.timed`] does.

    Attributes:
        rows (`list[list[int]]`): token ids of all prompts.
        refused (`dict[str, dict[str, str]]`): by mode and way of decoding, why it is left out.
    """

    def __init__(self, models: Models, prompts: PromptSet, plan: Plan, decoder: Decoder, timed: Timed) -> None:
        self.models, self.plan, self.decoder, self.timed = models, plan, decoder, timed
        self.rows = token_rows(models, prompts)
        self.batches = plan.batches(len(self.rows))
        self.rescorer = Rescorer(models)
        self.refused: dict[str, dict[str, str]] = {mode: {} for mode in plan.modes}

    def warm_up(self, mode: str, advance: Callable[[], None] = lambda: None) -> None:
        """Decodes in every way once, so that nothing that is made but once is timed, and notes what is refused."""
        # lengths decide about some refusals
        batch = max(range(len(self.batches)), key=lambda batch: max(len(self.rows[i]) for i in self.batches[batch]))
        unit = Unit(mode, 0, batch)
        for arm in self.plan.ways(mode):
            try:
                self._decode(unit, arm)
            except ExactAssistError as error:
                if arm == PLAIN:
                    raise
                self.refused[mode][arm.name] = str(error)
            advance()

    def wanted(self, step: Step) -> bool:
        """Whether a step can be done."""
        return step.arm not in self.refused[step.unit.mode]

    def do(self, step: Step, done: Mapping[Step, Record]) -> Record:
        """Carries out a step.

        Args:
            step (`Step`): the step.
            done (`Mapping[Step, Record]`): the steps of its unit before it.

        Returns:
            `Record`: what it leaves behind.

        Raises:
            NotReproducible: the call gave another text with the acceptance log.
        """
        if step.kind == CALL:
            return self._call(step)
        return self._look(step, done) if step.kind == LOOK else self._compare(step, done)

    def _call(self, step: Step) -> Call:
        unit, arm = step.unit, self._arm(step)
        decoded, taken = self.timed(lambda: self._decode(unit, arm), self.models.device)
        prompts, lengths = self._prompts(unit)
        likelihoods = None
        if unit.mode == SAMPLED:
            likelihoods = [
                self.rescorer.likelihood(self.rows[prompt], text)
                for prompt, text in zip(prompts, decoded.texts, strict=True)
            ]
        ended = [text[-1] in self.models.ends or len(text) < self.plan.max_new_tokens for text in decoded.texts]
        return Call(step, prompts, lengths, decoded.texts, ended, asdict(taken), decoded.stats, likelihoods)

    def _look(self, step: Step, done: Mapping[Step, Record]) -> Look:
        unit, arm = step.unit, self._arm(step)
        events: list[dict[str, Any]] = []
        texts = self._decode(unit, arm, events.append).texts
        if not arm.follows_clock(unit.mode) and texts != _call_of(done, unit, arm).texts:
            raise NotReproducible(
                f"The same call gave another text the second time ({unit.mode}, {arm.name}, batch {unit.batch + 1}), "
                "so that it cannot be evaluated. Where kernels do not add up in a fixed order, "
                "`torch.use_deterministic_algorithms(True)` makes them."
            )
        return Look(step, *self._prompts(unit), events)

    def _compare(self, step: Step, done: Mapping[Step, Record]) -> Comparison:
        unit, (prompts, _) = step.unit, self._prompts(step.unit)
        ways = [arm for arm in self.plan.ways(unit.mode)[1:] if arm.name not in self.refused[unit.mode]]
        if unit.mode == SAMPLED:
            ways = [arm for arm in ways if arm.coupling == SHARED_NOISE]
        plain, rows = _call_of(done, unit, PLAIN).texts, [self.rows[prompt] for prompt in prompts]
        arguments, seed = self.plan.arguments(unit.mode), self._seed(unit, PLAIN)

        def compared(row: int, text: list[int]) -> dict[str, Any] | None:
            def scores_at(position: int) -> torch.Tensor:
                return self.rescorer.scores(rows, plain, row, position, arguments, seed)

            found = compare_texts(plain[row], text, scores_at, self.models.rounds_like)
            return None if found is None else asdict(found)

        divergences = {
            arm.name: [compared(row, text) for row, text in enumerate(_call_of(done, unit, arm).texts)] for arm in ways
        }
        return Comparison(step, prompts, divergences)

    def _decode(self, unit: Unit, arm: Arm, listener: Listener | None = None) -> Decoded:
        rows = [self.rows[prompt] for prompt in self.batches[unit.batch]]
        return self.decoder(arm, rows, self.plan.arguments(unit.mode), self._seed(unit, arm), listener)

    def _seed(self, unit: Unit, arm: Arm) -> int | None:
        return None if unit.mode == GREEDY else self.plan.seed_of(unit, arm)

    def _arm(self, step: Step) -> Arm:
        return next(arm for arm in self.plan.ways(step.unit.mode) if arm.name == step.arm)

    def _prompts(self, unit: Unit) -> tuple[list[int], list[int]]:
        prompts = list(self.batches[unit.batch])
        return prompts, [len(self.rows[prompt]) for prompt in prompts]


def _call_of(done: Mapping[Step, Record], unit: Unit, arm: Arm) -> Call:
    call = done[Step(CALL, unit, arm.name)]
    assert isinstance(call, Call)
    return call
