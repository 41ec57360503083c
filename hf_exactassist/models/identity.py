"""What a model is, for manifests: names, configuration, weights, dtype, adapters (contract 0x01A)."""

from __future__ import annotations

import hashlib
import platform
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers
from transformers import PreTrainedModel

from ..version import __version__
from . import compat


_SAMPLED_VALUES = 8
# a description holds as long as the model's watch says so
_DESCRIBED: weakref.WeakKeyDictionary[PreTrainedModel, tuple[Any, dict[str, Any]]] = weakref.WeakKeyDictionary()


def libraries() -> dict[str, str]:
    """Versions of what computes."""
    return {
        "hf_exactassist": __version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def describe(model: PreTrainedModel) -> dict[str, Any]:
    """A model's identity.

    Args:
        model (`PreTrainedModel`): target or assistant.

    Returns:
        `dict[str, Any]`: class, name, Hub revision, SHA-256 of the configuration, a digest of the weights (every
        name, shape and dtype, and a few values of each tensor: a sketch, so that large models cost milliseconds),
        adapters, dtype, attention path, mode and the settings under which it computes now.
    """
    now = watch(model)()
    known = _DESCRIBED.get(model)
    if known is None or known[0] != now:
        config = model.config
        known = (
            now,
            {
                "class": f"{type(model).__module__}.{type(model).__qualname__}",
                "name": str(getattr(config, "_name_or_path", "") or ""),
                "revision": getattr(config, "_commit_hash", None),
                "config": hashlib.sha256(config.to_json_string(use_diff=False).encode()).hexdigest(),
                "weights": _weights(model),
                "adapters": [_adapter(part) for part in _adapted(model)],
                "dtype": str(model.dtype),
                "attention": getattr(compat.text_config(model), "_attn_implementation", None) or "eager",
                "training": model.training,
                "device": compat.model_device(model, torch.device("meta")).type,
            },
        )
        _DESCRIBED[model] = known
    return {**known[1], **_arithmetic(known[1]["device"])}


def tensor_digest(tensor: torch.Tensor) -> str:
    """SHA-256 of a tensor's shape, dtype and every value."""
    values = tensor.detach().cpu().contiguous()
    head = f"{tuple(values.shape)} {values.dtype};".encode()
    return hashlib.sha256(head + values.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def watch(model: PreTrainedModel) -> Callable[[], tuple[Any, ...]]:
    """A quick look at whether a model is still the one it was.

    Args:
        model (`PreTrainedModel`): the model.

    Returns:
        `Callable[[], tuple]`: its answer stays equal as long as no weight, dtype, adapter, attention path or mode
        changes. It means nothing outside this process.
    """
    parameters, adapted = list(model.parameters()), _adapted(model)

    def look() -> tuple[Any, ...]:
        versions = sum(0 if p.is_inference() else p._version for p in parameters)
        places = sum(p.data_ptr() for p in parameters if p.device.type != "meta")
        dtype = parameters[0].dtype if parameters else None
        attention = getattr(compat.text_config(model), "_attn_implementation", None)
        adapters = tuple(str(_adapter(part)) for part in adapted)
        return versions, places, dtype, attention, model.training, adapters, len(parameters)

    return look


def _arithmetic(device: str) -> dict[str, Any]:
    """Settings of torch under which a forward runs."""
    kind = "cpu" if device == "meta" else device
    autocast = str(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else None
    return {"autocast": autocast, "matmul_precision": torch.get_float32_matmul_precision()}


def _weights(model: PreTrainedModel) -> str:
    digest = hashlib.sha256()
    samples: dict[torch.device, list[torch.Tensor]] = {}
    for name, tensor in model.named_parameters():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
        if tensor.numel() and tensor.device.type != "meta":
            flat = tensor.detach().reshape(-1)
            chosen = flat[:: max(len(flat) // _SAMPLED_VALUES, 1)][:_SAMPLED_VALUES]
            samples.setdefault(tensor.device, []).append(chosen.double())
    for parts in samples.values():
        digest.update(torch.cat(parts).cpu().numpy().tobytes())
    return digest.hexdigest()


def _adapted(model: PreTrainedModel) -> list[torch.nn.Module]:
    """Layers that PEFT put adapters into."""
    return [part for part in model.modules() if isinstance(getattr(type(part), "active_adapters", None), property)]


def _adapter(part: Any) -> dict[str, Any]:
    return {
        "active": [str(name) for name in part.active_adapters],
        "merged": [str(name) for name in getattr(part, "merged_adapters", [])],
        "disabled": bool(getattr(part, "disable_adapters", False)),
    }
