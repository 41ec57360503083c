"""Row i: what keys and values take at the end of a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hf_exactassist
from tests.tiny import noisy, prompts, tiny

from .drafted import NUMBER
from .lines import Figure
from .pairs import without_end


WINDOW = 64
PROMPT = 40
NEW_TOKENS = (24, 50, 100, 200, 400, 1000)
ROWS = (1, 2)
MODELS = {
    "llama": {"max_position_embeddings": 2048},
    "gemma3": {"max_position_embeddings": 2048, "sliding_window": WINDOW},
}


@dataclass(frozen=True)
class Held:
    """The slots of a layer at the end of a call, each for all rows.

    Args:
        plain: those of plain decoding.
        ours: those of this library.
        window: of the layer, if it slides.
        where: model, layer and call.
    """

    plain: int
    ours: int
    window: int | None
    where: str

    @property
    def over_allowed(self) -> float:
        """Over what is allowed: the window, or plain's and five percent, and a draft."""
        allowed = 1.05 * self.plain if self.window is None else self.window
        return self.ours / (allowed + NUMBER)


def layers(advance: Callable[[], None]) -> list[Held]:
    """Every layer of targets and drafts in calls of several lengths."""
    found = []
    for name, settings in MODELS.items():
        target = without_end(tiny(name, **settings))
        draft = without_end(noisy(target, 0.05))
        for rows in ROWS:
            for tokens in NEW_TOKENS:
                where = f"{name}, {rows} x {PROMPT + tokens} tokens"
                found += _of_call(target, draft, prompts([PROMPT] * rows), tokens, where)
                advance()
    return found


def _of_call(target: Any, draft: Any, inputs: dict[str, Any], tokens: int, where: str) -> list[Held]:
    settings = {"max_new_tokens": tokens, "do_sample": False}
    session = hf_exactassist.start(
        target, **inputs, assistant_model=draft, num_assistant_tokens=NUMBER, use_cache=True, **settings
    )
    while not session.finished:
        session.step()
    found = []
    # of what no interface tells, as nobody else should ask
    for role, model, runner in (("target", target, session.scorer.target), ("draft", draft, session.drafter._runner)):
        plain = model.generate(**inputs, **settings, return_dict_in_generate=True).past_key_values
        for number, (theirs, ours) in enumerate(zip(plain.layers, runner.cache.layers, strict=True)):
            label = f"{where}, layer {number} of the {role}"
            found.append(Held(theirs.keys.shape[2], ours.keys.shape[2], ours.window, label))
    session.abandon()
    return found


def worst(advance: Callable[[], None]) -> dict[str, Figure]:
    """The layer of each kind that holds most, by what it may hold."""
    found = layers(advance)
    figures = {}
    for kind, of_kind in (
        ("full", [one for one in found if one.window is None]),
        ("sliding", [one for one in found if one.window is not None]),
    ):
        most = max(of_kind, key=lambda one: one.over_allowed)
        note = f"{most.ours} slots where plain has {most.plain}, at worst ({most.where})"
        figures[kind] = Figure(most.over_allowed, note=note)
    return figures
