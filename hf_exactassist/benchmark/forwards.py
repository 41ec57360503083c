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


_TIMES = 3


@dataclass(frozen=True)
class Forwards:
    """Times of single forwards for one batch.

    Attributes:
        target_prefill (`Taken`): the target reads the prompts.
        draft_prefill (`Taken`): the assistant does.
        target (`dict[int, tuple[Taken, ...]]`): the target reads so many further tokens of each row, several times.
        draft_steps (`tuple[Taken, ...]`): the assistant reads one, several times.
    """

    target_prefill: Taken
    draft_prefill: Taken
    target: dict[int, tuple[Taken, ...]]
    draft_steps: tuple[Taken, ...]


def time_forwards(
    pair: Pair, rows: Sequence[Sequence[int]], texts: Sequence[Sequence[int]], widths: Sequence[int]
) -> Forwards:
    """Times each forward a few times, in an order as when decoding, behind the first half of a continuation.

    Args:
        pair (`Pair`): the models.
        rows (`Sequence[Sequence[int]]`): prompts.
        texts (`Sequence[Sequence[int]]`): how each goes on.
        widths (`Sequence[int]`): tokens of the target's forwards; 1 is a plain step, others are blocks.

    Returns:
        `Forwards`: the times.
    """
    inputs = pair.inputs(rows)
    half = max(1, min(map(len, texts)) // 2)
    continued = torch.tensor([list(text[:half]) for text in texts], device=pair.device)
    # as `generate` does; in inference mode, or with frozen parameters, a CPU may take other kernels
    with torch.no_grad():
        target, draft = _Reader(pair.target, inputs), _Reader(pair.assistant, inputs)
        target_prefill, draft_prefill = target.prefill_time, draft.prefill_time
        target.read(continued)
        draft.read(continued)
        times: dict[int, list[Taken]] = {width: [] for width in widths}
        steps = []
        for width in [*widths] * _TIMES:
            # the processor's caches hold what was read last: a plain step comes after another, a block after drafts
            if width == 1:
                target.time(1)
            else:
                steps += [draft.time(1), draft.time(1)]
            times[width].append(target.time(width))
    told = {width: tuple(taken) for width, taken in times.items()}
    return Forwards(target_prefill, draft_prefill, told, tuple(steps))


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
        self.prefill_time = self._forward(inputs["input_ids"], self.mask, self.cache, self.first)

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, cache: Any, more: dict[str, Any]) -> Taken:
        kwargs: dict[str, Any] = {compat.cache_argument(self.model): cache, "use_cache": True, **more}
        if self.takes_positions:
            kwargs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        if not mask.all():
            # as `generate` does: without gaps there is nothing to mask
            kwargs["attention_mask"] = mask
        ids = ids.to(self.device) % self.size
        return timed(lambda: self.model(ids, **kwargs), self.device)[1]

    def read(self, ids: torch.Tensor) -> None:
        """Reads further tokens, `(B, N)`, and keeps them."""
        self.mask = self._longer(ids.shape[1])
        self.last = ids[:, -1:]
        self._forward(ids, self.mask, self.cache, self.first)

    def time(self, width: int) -> Taken:
        """Reads `width` further tokens and forgets them again."""
        return self._forward(self.last.expand(-1, width), self._longer(width), copy.deepcopy(self.cache), {})

    def _longer(self, width: int) -> torch.Tensor:
        return torch.cat([self.mask, self.mask.new_ones(len(self.mask), width)], dim=1)
