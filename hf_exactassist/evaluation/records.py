"""What the steps of an evaluation leave behind, one JSON object each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from .plan import CALL, COMPARE, LOOK, MODES, Step, Unit


@dataclass(frozen=True)
class Call:
    """A timed call.

    Attributes:
        step (`Step`): of kind `"call"`.
        prompts (`list[int]`): places of its prompts in the prompt set, from 0.
        prompt_lengths (`list[int]`): their tokens.
        texts (`list[list[int]]`): new tokens of each prompt, up to the one that ends it.
        ended (`list[bool]`): whether an end-of-text token or stop ended it, and not the longest length allowed.
        seconds (`dict[str, float]`): `"cpu"` and `"wall"`.
        stats (`dict[str, Any]`, *optional*): counters of an assisted call.
        likelihoods (`list[float]`, *optional*): of each sampled text, its mean log-likelihood per token under the
            target, in nats, sampling settings left out.
    """

    step: Step
    prompts: list[int]
    prompt_lengths: list[int]
    texts: list[list[int]]
    ended: list[bool]
    seconds: dict[str, float]
    stats: dict[str, Any] | None = None
    likelihoods: list[float] | None = None


@dataclass(frozen=True)
class Look:
    """The same call once more with the acceptance log, which takes time of its own.

    Attributes:
        step (`Step`): of kind `"look"`.
        prompts (`list[int]`): places of its prompts in the prompt set, by row.
        prompt_lengths (`list[int]`): their tokens.
        events (`list[dict[str, Any]]`): the log's records as it wrote them, decisions and rounds.
    """

    step: Step
    prompts: list[int]
    prompt_lengths: list[int]
    events: list[dict[str, Any]]


@dataclass(frozen=True)
class Comparison:
    """Texts that should be plain decoding's: greedy ones, and those drawn with the same noise.

    Attributes:
        step (`Step`): of kind `"compare"`.
        prompts (`list[int]`): places of the prompts in the prompt set, by row.
        divergences (`dict[str, list[dict[str, Any] | None]]`): by way of decoding and row, the fields of a
            [`~hf_exactassist.evaluation.Divergence`], or `None` where the texts are equal.
    """

    step: Step
    prompts: list[int]
    divergences: dict[str, list[dict[str, Any] | None]]


Record = Call | Look | Comparison
_KINDS: dict[str, type[Call] | type[Look] | type[Comparison]] = {CALL: Call, LOOK: Look, COMPARE: Comparison}


def to_json(record: Record) -> dict[str, Any]:
    """A record as JSON can write it."""
    return asdict(record)


def from_json(value: dict[str, Any]) -> Record:
    """A record from what [`to_json`] made of it.

    Raises:
        ValueError: it is none.
    """
    try:
        step = Step(**{**value["step"], "unit": Unit(**value["step"]["unit"])})
        kind = _KINDS[step.kind]
        return kind(**{item.name: value[item.name] for item in fields(kind)} | {"step": step})
    except (KeyError, TypeError) as error:
        raise ValueError(f"This is no record of an evaluation: {error!r}.") from error


def in_order(records: Iterable[Record]) -> list[Record]:
    """Records in an order that does not depend on who made them when."""
    kinds = list(_KINDS)

    def place(record: Record) -> tuple[int, int, int, str, int]:
        unit = record.step.unit
        return MODES.index(unit.mode), unit.repeat, unit.batch, record.step.arm, kinds.index(record.step.kind)

    return sorted(records, key=place)
