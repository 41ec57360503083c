"""How long a forward of a model takes, roughly and in proportion: from its shapes and the kind of device alone.

A forward reads every weight once, multiplies with each for every token, and starts some operations in every layer. The
figures are those of ordinary machines (one thread on a CPU). Two models on one device are what is compared, so factors
in common do not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from . import compat


@dataclass(frozen=True)
class _Machine:
    """Seconds for a byte that is read, for a product in float32 and in shorter types, to start a layer and a step."""

    byte: float
    product: float
    short_product: float
    layer: float
    step: float


_CPU = _Machine(1 / 1.3e10, 1 / 3.5e10, 1 / 1e11, 2e-4, 4e-4)
_ACCELERATOR = _Machine(1 / 1.5e12, 1 / 2e13, 1 / 2e14, 4e-4, 2e-4)


class Effort:
    """Estimated time of a model's forwards.

    Args:
        model (`PreTrainedModel`): any model.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        names = ("get_decoder", "get_input_embeddings", "get_output_embeddings")
        decoder, embedding, head = (compat.module_of(model, name) for name in names)
        # what reads the prompt alone, an encoder or a tower, takes no part
        read = [module for module in (decoder, head) if module is not None]
        parts = {id(part): part for module in read or [model] for part in module.parameters()}
        if embedding is not None and head is not None:
            # a table that is looked up and not multiplied with
            tied = {id(part) for part in head.parameters()}
            parts = {key: part for key, part in parts.items() if key in tied or part is not _weight(embedding)}
        weights = sum(part.numel() for part in parts.values())
        size = sum(part.numel() * part.element_size() for part in parts.values())
        devices = {part.device.type for part in parts.values()} - {"meta"}
        machine = _ACCELERATOR if devices - {"cpu"} else _CPU
        layers = getattr(compat.text_config(model), "num_hidden_layers", 1)
        self._fixed = size * machine.byte + layers * machine.layer + machine.step
        self._each = weights * (machine.product if size >= 4 * weights else machine.short_product)

    def seconds(self, tokens: int) -> float:
        """Estimated time of a forward over so many tokens, of all rows together, and of what becomes of its logits."""
        return self._fixed + self._each * tokens


def _weight(module: torch.nn.Module) -> torch.Tensor | None:
    return getattr(module, "weight", None)


def round_estimate(target: PreTrainedModel, assistant: PreTrainedModel | None) -> Callable[[int, int], float]:
    """Estimated seconds of a round, by rows and length of their drafts; without an assistant drafts cost nothing."""
    verify, draft = Effort(target), None if assistant is None else Effort(assistant)

    def seconds(rows: int, length: int) -> float:
        drafting = 0.0 if draft is None else length * draft.seconds(rows)
        return verify.seconds(rows * (length + 1)) + drafting

    return seconds


def reading_estimate(assistant: PreTrainedModel | None) -> float:
    """Estimated seconds of each token that an assistant reads beside the one it drafts after."""
    if assistant is None:
        return 0.0
    draft = Effort(assistant)
    return draft.seconds(2) - draft.seconds(1)
