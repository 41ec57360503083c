"""How much of decoding is spent inside the models' forwards, told by hooks. The hooks take time of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from .clocks import timed
from .pair import Pair


@dataclass(frozen=True)
class Watch:
    """Seconds of the forwards since hooks were set.

    Attributes:
        pair (`Pair`): the models.
        target (`list[float]`): one entry per forward of the target.
        draft (`list[float]`): of the assistant.
    """

    pair: Pair
    target: list[float] = field(default_factory=list)
    draft: list[float] = field(default_factory=list)

    def shares(self, call: Callable[[], Any]) -> dict[str, float]:
        """Makes a call and says how much of its wall time each model's forwards took.

        Args:
            call (`Callable`): the call.

        Returns:
            `dict[str, float]`: seconds of `target` and `draft` forwards and of the whole call, `total`, and how many
            forwards there were, `target_forwards` and `draft_forwards`.
        """
        self.target.clear()
        self.draft.clear()
        _, taken = timed(call, self.pair.device)
        return {
            "target": sum(self.target),
            "draft": sum(self.draft),
            "total": taken.wall,
            "target_forwards": len(self.target),
            "draft_forwards": len(self.draft),
        }


@contextmanager
def watching(pair: Pair) -> Iterator[Watch]:
    """Sets hooks on both models and takes them off again.

    A model with hooks is another model to this library, which probes it at the next call: make one before those that
    count.
    """
    watch = Watch(pair)
    handles = [*_hooks(pair.target, watch.target), *_hooks(pair.assistant, watch.draft)]
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()


def _hooks(model: PreTrainedModel, seconds: list[float]) -> list[Any]:
    began: list[float] = []

    def now() -> float:
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        return time.perf_counter()

    return [
        model.register_forward_pre_hook(lambda *_: began.append(now())),
        model.register_forward_hook(lambda *_: seconds.append(now() - began.pop())),
    ]
