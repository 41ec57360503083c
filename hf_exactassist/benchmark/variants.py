"""The ways of decoding that are compared."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from .. import api
from ..telemetry import AssistStats
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
    """

    texts: tuple[tuple[int, ...], ...]
    steps: int
    stats: AssistStats | None

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
        return Decoded(tuple(one.texts[0] for one in alone), max(one.steps for one in alone), None)
    given = {
        **pair.inputs(rows),
        "pad_token_id": pair.pad,
        "return_dict_in_generate": True,
        **settings,
    }
    if variant.kind == PLAIN:
        output = pair.target.generate(**given)
    elif variant.kind == TRANSFORMERS:
        with _drafting(pair.assistant, variant.num_assistant_tokens):
            output = pair.target.generate(**given, assistant_model=pair.assistant)
    else:
        if variant.num_assistant_tokens is not None:
            given["num_assistant_tokens"] = variant.num_assistant_tokens
            given["num_assistant_tokens_schedule"] = "constant"
        output = api.generate(
            pair.target,
            **given,
            assistant_model=pair.assistant,
            tokenizer=pair.tokenizer,
            assistant_tokenizer=pair.assistant_tokenizer,
        )
    new = output.sequences[:, given["input_ids"].shape[1] :].tolist()
    return Decoded(tuple(map(pair.text, new)), len(new[0]), getattr(output, "assist_stats", None))


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
