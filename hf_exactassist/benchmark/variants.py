"""The ways of decoding that are compared."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.generation import StoppingCriteria, StoppingCriteriaList

from .. import api
from ..telemetry import AssistStats
from .arithmetic import draft_lengths
from .pair import Pair


PLAIN, TRANSFORMERS, OURS = "plain", "transformers", "ours"


@dataclass(frozen=True)
class Variant:
    """One way of decoding.

    Attributes:
        kind (`str`): `"plain"`, `"transformers"` (its assisted generation) or `"ours"`.
        num_assistant_tokens (`int`, *optional*): tokens in every draft; `None` leaves it to the defaults.
    """

    kind: str
    num_assistant_tokens: int | None = None

    @property
    def name(self) -> str:
        """What it is called in tables."""
        number = self.num_assistant_tokens
        return self.kind if self.kind == PLAIN else f"{self.kind}, {'default' if number is None else f'K={number}'}"


@dataclass(frozen=True)
class Decoded:
    """What a call gave.

    Attributes:
        texts (`tuple[tuple[int, ...], ...]`): new tokens of each row, the one that ends it included.
        steps (`int`): the longest row's tokens: what plain decoding makes that many target forwards for.
        stats (`AssistStats`, *optional*): counters, of this library's calls alone.
        drafts (`dict[int, int]`): how many rounds of single rows had drafts of which length; steps have none.
    """

    texts: tuple[tuple[int, ...], ...]
    steps: int
    stats: AssistStats | None
    drafts: dict[int, int]

    @property
    def new_tokens(self) -> int:
        """Tokens of all rows."""
        return sum(map(len, self.texts))


def variants(numbers: Sequence[int], with_transformers: bool = True) -> list[Variant]:
    """Plain decoding, the defaults, and both libraries with each draft length.

    Args:
        numbers (`Sequence[int]`): draft lengths, each at least 1.
        with_transformers (`bool`): whether Transformers' assisted generation takes part.
    """
    theirs = [Variant(TRANSFORMERS, number) for number in numbers] if with_transformers else []
    return [Variant(PLAIN), *theirs, *(Variant(OURS, number) for number in numbers), Variant(OURS)]


def why_not(pair: Pair, variant: Variant) -> str:
    """Why a variant is not tried; empty if it is."""
    if variant.kind == TRANSFORMERS and not pair.one_tokenizer:
        return "the assistant has another tokenizer"
    return ""


def decode(pair: Pair, variant: Variant, rows: Sequence[Sequence[int]], settings: dict[str, Any]) -> Decoded:
    """Continues prompts in one of the ways.

    Args:
        pair (`Pair`): the models.
        variant (`Variant`): the way. Transformers' assisted generation takes one row, so it decodes them in turn.
        rows (`Sequence[Sequence[int]]`): token ids of the prompts.
        settings (`dict[str, Any]`): generation settings.
    """
    if variant.kind == TRANSFORMERS and len(rows) > 1:
        alone = [decode(pair, variant, [row], settings) for row in rows]
        counted: Counter[int] = sum((Counter(one.drafts) for one in alone), Counter())
        return Decoded(tuple(one.texts[0] for one in alone), max(one.steps for one in alone), None, dict(counted))
    given = {
        **pair.inputs(rows),
        "pad_token_id": pair.pad,
        **settings,
    }
    stats = None
    if variant.kind == PLAIN:
        sequences = pair.target.generate(**given)
    elif variant.kind == TRANSFORMERS:
        rounds = _Rounds(given["input_ids"].shape[1])
        with _drafting(pair.assistant, variant.num_assistant_tokens):
            sequences = pair.target.generate(
                **given, assistant_model=pair.assistant, stopping_criteria=StoppingCriteriaList([rounds])
            )
    else:
        if variant.num_assistant_tokens is not None:
            given["num_assistant_tokens"] = variant.num_assistant_tokens
            given["num_assistant_tokens_schedule"] = "constant"
        # `generate` tells counters together with a cache, which would have to be made whole
        session = api.start(
            pair.target,
            **given,
            assistant_model=pair.assistant,
            tokenizer=pair.tokenizer,
            assistant_tokenizer=pair.assistant_tokenizer,
        )
        sequences, stats = session.result(), session.stats
    new = sequences[:, given["input_ids"].shape[1] :].tolist()
    steps = len(new[0])
    if variant.kind == TRANSFORMERS:
        drafts = rounds.drafts(variant.num_assistant_tokens or 0, settings["max_new_tokens"])
    else:
        drafts = (
            {0: (steps - 1) * len(rows)} if stats is None else draft_lengths(stats.rounds, stats.drafted_by_position)
        )
    return Decoded(tuple(map(pair.text, new)), steps, stats, drafts)


class _Rounds(StoppingCriteria):
    """Stops nothing, and notes where rounds of Transformers' assisted generation end: it asks once a round.

    Args:
        start (`int`): where the first begins.
    """

    def __init__(self, start: int) -> None:
        self.ends = [start]

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.ends.append(input_ids.shape[1])
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    def drafts(self, number: int, room: int) -> dict[int, int]:
        """How many drafts had which length, if the last are cut to leave a place for the target's own token."""
        limit = self.ends[0] + room - 1
        return dict(Counter(max(0, min(number, limit - end)) for end in self.ends[:-1]))


@contextmanager
def _drafting(assistant: PreTrainedModel, number: int | None) -> Iterator[None]:
    """Sets fixed drafts where Transformers looks for them, in the assistant's config, and puts that back."""
    before = assistant.generation_config
    assistant.generation_config = copy.deepcopy(before)
    assistant.generation_config.num_assistant_tokens = number
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    # or drafts end early where the assistant is unsure
    assistant.generation_config.assistant_confidence_threshold = 0.0
    try:
        yield
    finally:
        assistant.generation_config = before
