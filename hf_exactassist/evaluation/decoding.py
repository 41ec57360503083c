"""Carries out one call in one of the ways of decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from .. import api
from ..errors import InvalidArgument
from .data import PromptSet
from .models import Models
from .plan import PROMPT_LOOKUP, SHARED_NOISE, Arm


# told of every decision and round
Listener = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Decoded:
    """What a call gave.

    Attributes:
        texts (`list[list[int]]`): new tokens of each row, up to the one that ends it.
        stats (`dict[str, Any]`, *optional*): counters of an assisted call.
    """

    texts: list[list[int]]
    stats: dict[str, Any] | None = None


class Decoder:
    """Decodes prompts plainly and with assistance. Another one can be evaluated in its place.

    Args:
        models (`Models`): target and assistants.
    """

    def __init__(self, models: Models) -> None:
        self.models = models

    def __call__(
        self,
        arm: Arm,
        rows: Sequence[Sequence[int]],
        arguments: dict[str, Any],
        seed: int | None = None,
        listener: Listener | None = None,
    ) -> Decoded:
        """Continues prompts.

        Args:
            arm (`Arm`): in which way.
            rows (`Sequence[Sequence[int]]`): token ids of the prompts.
            arguments (`dict[str, Any]`): of `generate`.
            seed (`int`, *optional*): of a sampled call.
            listener (`Callable[[dict], None]`, *optional*): gets the acceptance log of an assisted call.

        Raises:
            ExactAssistError: the way is refused.
        """
        given = {**self.models.inputs(rows), "pad_token_id": self.models.pad, **arguments}
        width = given["input_ids"].shape[1]
        stats = None
        if arm.drafter is None:
            with seeded(seed, self.models.device):
                sequences = self.models.target.generate(**given)
        else:
            given |= {"coupling": arm.coupling, "layout": arm.layout, "telemetry": listener, **self._drafting(arm)}
            shared = seed is not None and arm.coupling == SHARED_NOISE
            if not shared:
                given["seed"] = seed
            with seeded(seed if shared else None, self.models.device):
                # `generate` tells counters together with a cache, which would have to be made whole
                session = api.start(self.models.target, **given)
                sequences = session.result()
            stats = asdict(session.stats)
        return Decoded([list(self.models.text(row)) for row in sequences[:, width:].tolist()], stats)

    def _drafting(self, arm: Arm) -> dict[str, Any]:
        number = arm.num_assistant_tokens
        if arm.drafter == PROMPT_LOOKUP:
            return {"prompt_lookup_num_tokens": number}
        assistant = self.models.assistants[arm.drafter or ""]
        fixed = {"num_assistant_tokens": number, "num_assistant_tokens_schedule": "constant"}
        return {
            "assistant_model": assistant.model,
            "tokenizer": self.models.tokenizer,
            "assistant_tokenizer": assistant.tokenizer,
            **({} if number is None else fixed),
        }


@contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Seeds torch for a while, and puts its generators back; nothing without a seed."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def token_rows(models: Models, prompts: PromptSet) -> list[list[int]]:
    """Token ids of all prompts.

    Raises:
        InvalidArgument: a prompt has none.
    """
    rows = []
    for prompt in prompts.prompts:
        # a chat template has written the special tokens already
        ids = models.tokenizer(prompt.text, add_special_tokens=not prompts.chat)["input_ids"]
        if not ids:
            raise InvalidArgument(
                f"The prompt of row {prompt.index} has no tokens in the target's vocabulary: take the row out."
            )
        rows.append(list(ids))
    return rows
