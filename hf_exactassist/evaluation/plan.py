"""What an evaluation decodes: every prompt, in every way, in an order that interruptions do not change."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..options import COUPLINGS, LAYOUTS


GREEDY, SAMPLED = MODES = ("greedy", "sampled")
MAXIMAL, SHARED_NOISE = COUPLINGS
# the name of the drafter that copies from the text itself
PROMPT_LOOKUP = "prompt lookup"
# what a step does: a timed call, the same call with the acceptance log, or comparing the texts of a unit
CALL, LOOK, COMPARE = "call", "look", "compare"


@dataclass(frozen=True)
class Arm:
    """One way of decoding.

    Attributes:
        drafter (`str`, *optional*): the name of an assistant, or `PROMPT_LOOKUP`; `None` decodes plainly.
        num_assistant_tokens (`int`, *optional*): tokens in every draft; `None` leaves it to the defaults.
        coupling (`str`): how drafts are judged.
        layout (`str`): when the last published token is read.
    """

    drafter: str | None = None
    num_assistant_tokens: int | None = None
    coupling: str = MAXIMAL
    layout: str = LAYOUTS[0]

    @property
    def name(self) -> str:
        """What it is called in records and tables."""
        if self.drafter is None:
            return "plain"
        number = "default" if self.num_assistant_tokens is None else f"K={self.num_assistant_tokens}"
        more = [] if self.coupling == MAXIMAL else [self.coupling.replace("_", " ")]
        more += [] if self.layout == LAYOUTS[0] else [self.layout]
        return ", ".join([self.drafter, number, *more])

    def takes_part(self, mode: str) -> bool:
        """Whether it is another way in this mode: how drafts are judged makes no difference to greedy decoding."""
        return mode == SAMPLED or self.coupling == MAXIMAL

    def follows_clock(self, mode: str) -> bool:
        """Whether draft lengths depend on how long things take: by default, where texts do not depend on them."""
        unsure = self.drafter is not None and self.num_assistant_tokens is None
        return unsure and (mode == GREEDY or self.coupling == SHARED_NOISE)


PLAIN = Arm()


@dataclass(frozen=True)
class Unit:
    """One batch, decoded in all ways by one process, so that their times can be compared.

    Attributes:
        mode (`str`): of `MODES`.
        repeat (`int`): number of the repeat.
        batch (`int`): number of the batch.
    """

    mode: str
    repeat: int
    batch: int


@dataclass(frozen=True)
class Step:
    """What is done, recorded and never done again.

    Attributes:
        kind (`str`): `"call"`, `"look"` or `"compare"`.
        unit (`Unit`): where it belongs.
        arm (`str`): name of the way of decoding; empty for `"compare"`.
    """

    kind: str
    unit: Unit
    arm: str = ""


@dataclass(frozen=True)
class Plan:
    """What is decoded.

    Attributes:
        arms (`tuple[Arm, ...]`): assisted ways; plain decoding always takes part.
        modes (`tuple[str, ...]`): of `MODES`.
        batch_size (`int`): prompts per call.
        repeats (`int`): how often everything is decoded; sampled texts are others each time.
        max_new_tokens (`int`): tokens per prompt at most.
        sampling (`dict[str, Any]`): further arguments of sampled calls, such as `temperature`.
        seed (`int`): of sampled calls.
        settings (`dict[str, Any]`): further arguments of all calls, such as `repetition_penalty`.
    """

    arms: tuple[Arm, ...]
    modes: tuple[str, ...] = MODES
    batch_size: int = 1
    repeats: int = 1
    max_new_tokens: int = 64
    sampling: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    settings: dict[str, Any] = field(default_factory=dict)

    def arguments(self, mode: str) -> dict[str, Any]:
        """Arguments of every call in a mode."""
        drawn = {"do_sample": True, **self.sampling} if mode == SAMPLED else {"do_sample": False}
        return {"max_new_tokens": self.max_new_tokens, **self.settings, **drawn}

    def ways(self, mode: str) -> list[Arm]:
        """All ways of decoding in a mode, plain first."""
        return [PLAIN, *(arm for arm in self.arms if arm.takes_part(mode))]

    def tested(self) -> list[Arm]:
        """Ways whose law is tested: where the noise is shared, texts are compared instead."""
        return [arm for arm in self.ways(SAMPLED)[1:] if arm.coupling == MAXIMAL and SAMPLED in self.modes]

    def batches(self, prompts: int) -> list[range]:
        """The prompts of each call, in order; the last call may have fewer."""
        return [range(at, min(at + self.batch_size, prompts)) for at in range(0, prompts, self.batch_size)]

    def units(self, prompts: int) -> list[Unit]:
        """All batches of all repeats, one mode after the other."""
        return [
            Unit(mode, repeat, batch)
            for mode in self.modes
            for repeat in range(self.repeats)
            for batch in range(len(self.batches(prompts)))
        ]

    def steps(self, unit: Unit) -> Iterator[Step]:
        """What is done with a batch: all ways in turn, another one first each time; then what is not timed."""
        ways = self.ways(unit.mode)
        first = (unit.repeat + unit.batch) % len(ways)
        for arm in ways[first:] + ways[:first]:
            yield Step(CALL, unit, arm.name)
        if unit.repeat == 0:
            for arm in ways[1:]:
                yield Step(LOOK, unit, arm.name)
        yield Step(COMPARE, unit)

    def seed_of(self, unit: Unit, arm: Arm) -> int:
        """The seed of a sampled call: its own for each way, but plain decoding's where the noise is shared."""
        way = PLAIN.name if arm.coupling == SHARED_NOISE else arm.name
        text = f"{self.seed} {unit.repeat} {unit.batch} {way}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
