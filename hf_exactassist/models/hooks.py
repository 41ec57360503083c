"""What changes a model's forward without changing its class."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from transformers import PreTrainedModel

from . import compat
from .encoder import EncoderInputs


def hooks_of(model: PreTrainedModel, modules: Iterable[torch.nn.Module] | None = None) -> tuple[int, ...]:
    """Keys of the hooks on a model's modules, and forwards that were put over those of their classes.

    Args:
        model (`PreTrainedModel`): the model.
        modules (`Iterable`, *optional*): all of its modules, where they are known.
    """
    found = []
    for module in compat.all_modules(model) if modules is None else modules:
        if module._forward_hooks or module._forward_pre_hooks:
            hooks = {**module._forward_hooks, **module._forward_pre_hooks}
            # a call's own look at what the encoder reads changes nothing
            found += [key for key, hook in hooks.items() if getattr(hook, "__func__", None) is not EncoderInputs.note]
        if "forward" in module.__dict__:
            found.append(id(module.__dict__["forward"]))
    return tuple(found)
