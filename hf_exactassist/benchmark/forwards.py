"""What single forwards cost: the target's by width, and a draft step, in the middle of a text."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from ..models import compat
from .clocks import Taken, timed
from .pair import Pair


@dataclass(frozen=True)
class Forwards:
    """Times of single forwards for one batch.

    Attributes:
        target_prefill (`Taken`): the target reads the prompts.
        draft_prefill (`Taken`): the assistant does.
        target (`dict[int, Taken]`): the target reads so many further tokens of each row.
        draft_steps (`tuple[Taken, ...]`): the assistant reads one, again and again.
    """

    target_prefill: Taken
    draft_prefill: Taken
    target: dict[int, Taken]
    draft_steps: tuple[Taken, ...]


def time_forwards(
    pair: Pair, rows: Sequence[Sequence[int]], texts: Sequence[Sequence[int]], widths: Sequence[int]
) -> Forwards:
    """Times each forward once, the models in turn as in a round, behind the first half of a continuation.

    Args:
        pair (`Pair`): the models.
        rows (`Sequence[Sequence[int]]`): prompts.
        texts (`Sequence[Sequence[int]]`): how each goes on.
        widths (`Sequence[int]`): tokens of the target's forwards.

    Returns:
        `Forwards`: the times.
    """
    inputs = pair.inputs(rows)
    half = max(1, min(map(len, texts)) // 2)
    continued = torch.tensor([list(text[:half]) for text in texts], device=pair.device)
    with torch.inference_mode():
        target, draft = _Reader(pair.target, inputs), _Reader(pair.assistant, inputs)
        target_prefill, draft_prefill = target.prefill_time, draft.prefill_time
        target.read(continued)
        draft.read(continued)
        times, steps = {}, []
        # in turn: after the other model's forward the processor's caches hold what they hold within a round
        for width in widths:
            times[width] = target.time(width)
            steps.append(draft.time(1))
    return Forwards(target_prefill, draft_prefill, times, tuple(steps))


class _Reader:
    """A model with a cache, which reads prompts and then further tokens."""

    def __init__(self, model: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> None:
        self.model, self.device = model, model.device
        names = compat.forward_parameters(model)
        self.takes_positions = "position_ids" in names
        self.first = {"logits_to_keep": 1} if "logits_to_keep" in names else {}
        self.mask = inputs["attention_mask"].to(self.device)
        self.cache = compat.new_cache(model)
        # an assistant of another tokenizer has other ids; which tokens are read makes no difference to the time
        self.size = compat.head_size(model)
        ids = inputs["input_ids"].to(self.device) % self.size
        _, self.prefill_time = timed(lambda: self._forward(ids, self.mask, self.cache, self.first), self.device)

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, cache: Any, more: dict[str, Any]) -> Any:
        kwargs: dict[str, Any] = {"attention_mask": mask, "use_cache": True, **more}
        if self.takes_positions:
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            kwargs["position_ids"] = positions[:, -ids.shape[1] :]
        return self.model(ids, **{compat.cache_argument(self.model): cache}, **kwargs)

    def read(self, ids: torch.Tensor) -> None:
        """Reads further tokens, `(B, N)`, and keeps them."""
        self.mask = self._longer(ids.shape[1])
        self.last = ids[:, -1:].to(self.device) % self.size
        self._forward(ids.to(self.device) % self.size, self.mask, self.cache, self.first)

    def time(self, width: int) -> Taken:
        """Reads `width` further tokens and forgets them again."""
        ids, mask, cache = self.last.expand(-1, width), self._longer(width), copy.deepcopy(self.cache)
        return timed(lambda: self._forward(ids, mask, cache, {}), self.device)[1]

    def _longer(self, width: int) -> torch.Tensor:
        return torch.cat([self.mask, self.mask.new_ones(len(self.mask), width)], dim=1)
