"""Which positions a forward gives logits for, asked in the way that keeps a frozen head fast.

On a CPU, torch multiplies a *slice* of hidden states `(B, T, D)` with a weight that needs no gradient as a batch of
matrices, the weight expanded over it (`aten::bmm`): in bfloat16 that takes twenty times as long as one product of two
matrices (`aten::mm`). Positions chosen by a tensor are copied first, and then it is one product.

Plain `generate` reads its prompts with a slice. The two products may round differently, so a target's first scores are
taken as plain `generate` takes them, once a call; all later forwards, and an assistant's, are asked here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from . import compat


def last_positions(model: PreTrainedModel, keep: int, width: int) -> int | torch.Tensor:
    """What to pass as `logits_to_keep` for logits of the last `keep` of `width` positions.

    Args:
        model (`PreTrainedModel`): a model whose forward takes `logits_to_keep`.
        keep (`int`): positions to get logits of, counted from the end.
        width (`int`): positions that are read.

    Returns:
        `int` or `torch.LongTensor` of shape `(keep,)`: a number wherever it is as fast, since some classes spare more
        than the head where they get one.
    """
    if keep == width or not _is_frozen(model) or not _takes_tensors(model):
        return keep
    return torch.arange(-keep, 0, device="cpu")


def _is_frozen(model: PreTrainedModel) -> bool:
    weight = getattr(compat.module_of(model, "get_output_embeddings"), "weight", None)
    return isinstance(weight, torch.Tensor) and weight.device.type == "cpu" and not weight.requires_grad


def _takes_tensors(model: PreTrainedModel) -> bool:
    if "forward" in vars(model):
        # put over the class's, and perhaps not for long
        return _declares_tensors.__wrapped__(model.forward)
    return _declares_tensors(type(model).forward)


@functools.lru_cache(maxsize=64)
def _declares_tensors(forward: Callable[..., Any]) -> bool:
    return "Tensor" in str(inspect.signature(forward).parameters["logits_to_keep"].annotation)
