"""What a model is, for manifests: names, configuration, weights, dtype, adapters (contract 0x01A)."""

from __future__ import annotations

import hashlib
import json
import platform
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
import transformers
from torch.multiprocessing.reductions import StorageWeakRef
from transformers import PreTrainedModel

from ..state.manifest import digest
from ..version import __version__
from . import compat, inputs


_SAMPLED_VALUES = 8
# a description holds while the model looks as it did and no tensor was freed since: addresses are used again
_Description = tuple[Any, list[StorageWeakRef], dict[str, Any]]
_DESCRIBED: weakref.WeakKeyDictionary[PreTrainedModel, _Description] = weakref.WeakKeyDictionary()


def libraries() -> dict[str, str]:
    """Versions of what computes."""
    return {
        "hf_exactassist": __version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
    }


def describe(model: PreTrainedModel, now: tuple[Any, ...] | None = None) -> dict[str, Any]:
    """A model's identity.

    Args:
        model (`PreTrainedModel`): target or assistant.
        now (`tuple`, *optional*): how it looks just now, from [`watch`].

    Returns:
        `dict[str, Any]`: class, name, Hub revision, dtypes, attention path, adapters, mode, device, SHA-256 of the
        configuration, a digest of the weights (every name, shape and dtype, and a few values of each tensor: a sketch,
        so that large models cost milliseconds), and the settings under which it computes now.
    """
    now = watch(model)() if now is None else now
    known = _DESCRIBED.get(model)
    if known is None or known[0] != now or any(storage.expired() for storage in known[1]):
        tensors = [tensor for _, tensor in _named_tensors(model)]
        known = (now, _storages(tensors), _described(model, tensors))
        _DESCRIBED[model] = known
    return {**known[2], **_arithmetic(known[2]["device"])}


def _described(model: PreTrainedModel, tensors: list[torch.Tensor]) -> dict[str, Any]:
    """What holds until the model changes. What a change is best called by comes first: a dtype changes weights too."""
    config = json.loads(model.config.to_json_string(use_diff=False))
    # both stand beside it
    config = {key: value for key, value in config.items() if key not in ("_name_or_path", "transformers_version")}
    return {
        "class": f"{type(model).__module__}.{type(model).__qualname__}",
        "name": str(getattr(model.config, "_name_or_path", "") or ""),
        "revision": getattr(model.config, "_commit_hash", None),
        "dtype": ", ".join(sorted({str(tensor.dtype) for tensor in tensors})),
        "attention": getattr(compat.text_config(model), "_attn_implementation", None) or "eager",
        "adapters": [_adapter(part) for part in _adapted(model.modules())],
        "training": any(part.training for part in model.modules()),
        "device": _device(model),
        "config": digest(config),
        "weights": _weights(model),
    }


def tensor_digest(tensor: torch.Tensor) -> str:
    """SHA-256 of a tensor's shape, dtype and every value."""
    values = tensor.detach().cpu().contiguous()
    head = f"{tuple(values.shape)} {values.dtype};".encode()
    return hashlib.sha256(head + values.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def content_digest(value: Any) -> Any:
    """Digests in place of tensors, in whatever dicts and sequences hold them."""
    if isinstance(value, torch.Tensor):
        return tensor_digest(value)
    if isinstance(value, dict):
        # of an encoder's outputs, what decoders read
        names = [name for name in ("pooler_output", "deepstack_features") if name in value] or list(value)
        return {str(name): content_digest(value[name]) for name in names}
    if isinstance(value, (list, tuple)):
        return [content_digest(part) for part in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else type(value).__qualname__


def describe_prompt(model: PreTrainedModel, arguments: dict[str, Any]) -> dict[str, Any]:
    """What a call reads besides tokens: digests of embeddings, encoder states, images and audio.

    Args:
        model (`PreTrainedModel`): the target.
        arguments (`dict[str, Any]`): its forward arguments as `generate` prepared them.
    """
    embeds, encoded = arguments.get("inputs_embeds"), arguments.get("encoder_outputs")
    return {
        "embeddings": None if embeds is None else tensor_digest(embeds),
        "encoder": None if encoded is None else tensor_digest(encoded[0]),
        "shown": content_digest(inputs.shown(model, arguments)),
    }


def watch(model: PreTrainedModel) -> Callable[[], tuple[Any, ...]]:
    """A quick look at whether a model is still the one it was.

    Args:
        model (`PreTrainedModel`): the model.

    Returns:
        `Callable[[], tuple]`: its answer stays equal as long as nothing changes: weights, dtypes, adapters, plain
        settings of the configuration, mode, settings of torch's arithmetic. Values written through a tensor's `.data`
        leave no trace and are not seen, nor are hooks (Transformers adds some of its own during a call) and other
        attributes of modules. It means nothing outside this process.
    """
    # held, so that nothing new gets the identity of a module that was taken out
    modules = compat.all_modules(model)
    parameters, buffers = [part._parameters for part in modules], [part for part in modules if part._buffers]
    children, adapted = [part._modules for part in modules], _adapted(modules)
    storages = _storages(tensor for part in modules for _, tensor in _own_tensors(part))

    def look() -> tuple[Any, ...]:
        kept = [tensor for part in buffers for _, tensor in _own_buffers(part)]
        return (
            [_trace(tensor) for table in parameters for tensor in table.values() if tensor is not None],
            [_trace(tensor) for tensor in kept],
            [id(child) for table in children for child in table.values()],
            [part.training for part in modules],
            any(storage.expired() for storage in storages),
            _plain_attributes(model.config),
            _plain_attributes(compat.text_config(model)),
            [_adapter(part) for part in adapted],
            _arithmetic(_device(model)),
        )

    return look


def _arithmetic(device: str) -> dict[str, Any]:
    """Settings of torch under which a forward runs."""
    kind = "cpu" if device == "meta" else device
    autocast = str(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else None
    return {"autocast": autocast, "matmul_precision": torch.get_float32_matmul_precision()}


def _weights(model: PreTrainedModel) -> str:
    sketch = hashlib.sha256()
    samples: dict[torch.device, list[torch.Tensor]] = {}
    for name, tensor in _named_tensors(model):
        sketch.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
        if tensor.numel() and tensor.device.type != "meta":
            try:
                flat = tensor.detach().reshape(-1)
                chosen = flat[:: max(len(flat) // _SAMPLED_VALUES, 1)][:_SAMPLED_VALUES].double()
            except (NotImplementedError, TypeError, RuntimeError):
                # a tensor class of a quantization library that gives no values away
                continue
            samples.setdefault(tensor.device, []).append(chosen)
    for parts in samples.values():
        sketch.update(torch.cat(parts).cpu().numpy().tobytes())
    return sketch.hexdigest()


def _plain_attributes(config: Any) -> dict[str, Any]:
    """Among them name, revision and attention path."""
    return {name: value for name, value in vars(config).items() if isinstance(value, (bool, int, float, str))}


def _own_tensors(part: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """A module's own parameters and the buffers that belong to its checkpoint, where quantized weights are kept."""
    for name, tensor in part._parameters.items():
        if tensor is not None:
            yield name, tensor
    yield from _own_buffers(part)


def _own_buffers(part: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in part._buffers.items():
        if tensor is not None and name not in part._non_persistent_buffers_set:
            yield name, tensor


def _named_tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for path, part in model.named_modules():
        for name, tensor in _own_tensors(part):
            yield f"{path}.{name}", tensor


def _device(model: torch.nn.Module) -> str:
    return next((tensor.device.type for _, tensor in _named_tensors(model)), "cpu")


def _trace(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What changes when a tensor is written to, replaced or converted."""
    if tensor.is_meta:
        # an offloaded weight is another object after every forward
        return (tensor.dtype,)
    version = 0 if tensor.is_inference() else tensor._version
    try:
        return version, tensor.data_ptr(), tensor.dtype
    except RuntimeError:
        # a tensor class without memory of its own
        return version, id(tensor), tensor.dtype


def _storages(tensors: Iterable[torch.Tensor]) -> list[StorageWeakRef]:
    """Says of each tensor's memory whether it has been freed since."""
    return [StorageWeakRef(tensor.untyped_storage()) for tensor in tensors if tensor.device.type != "meta"]


def _adapted(modules: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """Layers that PEFT put adapters into."""
    return [part for part in modules if isinstance(getattr(type(part), "active_adapters", None), property)]


def _adapter(part: Any) -> dict[str, Any]:
    return {
        "active": [str(name) for name in part.active_adapters],
        "merged": [str(name) for name in getattr(part, "merged_adapters", [])],
        "disabled": bool(getattr(part, "disable_adapters", False)),
    }
