"""One question, answered plainly and with the assistant in turn."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from hf_exactassist.benchmark.clocks import timed
from hf_exactassist.benchmark.pair import Pair
from hf_exactassist.benchmark.variants import OURS, PLAIN, Variant, decode

from .chat import Chat
from .questions import Question


_WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class Decoding:
    """How answers are decoded.

    Attributes:
        max_new_tokens (`int`): tokens of an answer at most.
        temperature (`float`): 0 is greedy.
        seed (`int`): of every sampled answer.
        num_assistant_tokens (`int`, *optional*): tokens in every draft; `None` leaves it to the default.
    """

    max_new_tokens: int
    temperature: float
    seed: int
    num_assistant_tokens: int | None

    @property
    def greedy(self) -> bool:
        """Whether plain and assisted answers must be the same."""
        return self.temperature == 0

    def settings(self, room: int) -> dict[str, Any]:
        """Arguments of a call whose answer has room for so many tokens."""
        drawn = {"do_sample": True, "temperature": self.temperature, "top_k": 0, "top_p": 1.0}
        return {"max_new_tokens": min(self.max_new_tokens, room), **({"do_sample": False} if self.greedy else drawn)}


def warm_up(pair: Pair, chat: Chat, decoding: Decoding, question: Question) -> None:
    """What only first calls do, before anything is timed."""
    prompt = chat.prompt(question.turns[:1], [], "The first question")
    settings = decoding.settings(min(_WARM_UP_TOKENS, _room(pair, prompt)))
    if settings["max_new_tokens"] > 0:
        for variant in (Variant(PLAIN), Variant(OURS, decoding.num_assistant_tokens)):
            decode(pair, variant, [prompt], settings)


def answer(pair: Pair, chat: Chat, decoding: Decoding, question: Question, number: int) -> dict[str, Any]:
    """Answers all turns of a question; later prompts hold the earlier plain answers, for both ways of decoding.

    Args:
        pair (`Pair`): the models.
        chat (`Chat`): how conversations are written.
        decoding (`Decoding`): how answers are decoded.
        question (`Question`): the question.
        number (`int`): its place, which says what comes first, plain or assisted.

    Returns:
        `dict[str, Any]`: a record as JSON can write it. Of each turn, tokens and seconds of both ways, `rounds` and
        the tokens `published` in them (all but the first of the answer, which comes with the prompt), and whether the
        tokens are `identical`; `None` for sampled ones. Or why the question was `skipped`.
    """
    answers: list[str] = []
    turns: list[dict[str, Any]] = []
    skipped = None
    for turn in range(len(question.turns)):
        prompt = chat.prompt(question.turns[: turn + 1], answers, f"Question {question.question_id}")
        room = _room(pair, prompt)
        if room < 1:
            skipped = f"turn {turn + 1} has {len(prompt)} tokens, and the models read no more"
            break
        text, counts = _decode_both(pair, decoding, prompt, room, plain_first=(number + turn) % 2 == 0)
        turns.append(counts)
        answers.append(chat.answer(text))
    return {
        "question_id": question.question_id,
        "category": question.category,
        "skipped": skipped,
        "turns": turns,
        "answers": answers,
    }


def _decode_both(
    pair: Pair, decoding: Decoding, prompt: list[int], room: int, plain_first: bool
) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Tokens of the plain answer, and what both ways counted."""
    ways = [Variant(PLAIN), Variant(OURS, decoding.num_assistant_tokens)]
    results = {}
    for variant in ways if plain_first else ways[::-1]:
        torch.manual_seed(decoding.seed)
        call = partial(decode, pair, variant, [prompt], decoding.settings(room))
        results[variant.kind] = timed(call, pair.device)
    (plain, plain_time), (assisted, assisted_time) = results[PLAIN], results[OURS]
    assert assisted.stats is not None
    return plain.texts[0], {
        "prompt_tokens": len(prompt),
        "plain": {"tokens": plain.new_tokens, **asdict(plain_time)},
        "assisted": {"tokens": assisted.new_tokens, **asdict(assisted_time)},
        "rounds": assisted.stats.row_rounds,
        "published": assisted.new_tokens - 1,
        "identical": plain.texts == assisted.texts if decoding.greedy else None,
    }


def _room(pair: Pair, prompt: list[int]) -> int:
    """Tokens that both models can still read."""
    sizes = [
        getattr(model.config.get_text_config(), "max_position_embeddings", None)
        for model in (pair.target, pair.assistant)
    ]
    # some configs say -1 where there is no end
    return min([size for size in sizes if size and size > 0], default=2**31) - len(prompt)
