"""Whether a processor of unknown class remembers its calls: asked on a copy, before the first token.

A processor is taken as stateless only if a copy of it can be made, calls leave the copy as it was, and equal prefixes get
equal answers whatever was asked in between. In doubt it counts as stateful.
"""

from __future__ import annotations

import copy
import dis
import functools
import hashlib
import types
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase


# too large to copy, and not what a processor keeps its own state in
_SHARED = (torch.nn.Module, PreTrainedTokenizerBase)
_ATOMS = (type(None), bool, int, float, complex, str, bytes, type, torch.dtype, torch.device, torch.Size, range)


class _Opaque(Exception):
    """Something whose state cannot be read."""


def is_stateless(
    processor: Callable[..., Any], call: Callable[[Any, torch.Tensor], torch.Tensor], prompt: torch.Tensor
) -> bool:
    """Probes a copy of `processor`; the original is not called.

    Args:
        processor (`Callable`): a processor, or a `prefix_allowed_tokens_fn`.
        call (`Callable`): `call(copy, input_ids)` applies the copy to prefixes of shape `(B, L)` and returns scores `(B, V)`.
        prompt (`torch.LongTensor` of shape `(B, P)`): the prefixes of the first real call.

    Returns:
        `bool`: `True` only if nothing speaks for hidden state.
    """
    with torch.random.fork_rng(devices=[prompt.device] if prompt.device.type == "cuda" else []):
        try:
            subject = _copy(processor)
            before = fingerprint(subject)
            first = call(subject, prompt)
            longer = torch.cat([prompt, first.argmax(dim=-1, keepdim=True).to(prompt)], dim=1)
            call(subject, longer)
            again = call(subject, prompt)
            return torch.equal(first, again) and fingerprint(subject) == before
        except Exception:  # whatever a foreign object raises here, it leaves us in doubt
            return False


def _copy(value: Any) -> Any:
    """A deep copy that also reaches what plain functions close over, and shares models and tokenizers."""
    memo: dict[int, Any] = {}
    for part in _parts(value):
        if isinstance(part, _SHARED):
            memo[id(part)] = part
    if isinstance(value, functools.partial):
        return functools.partial(_copy(value.func), *copy.deepcopy(value.args, memo), **copy.deepcopy(value.keywords, memo))
    if isinstance(value, types.FunctionType):
        if any(op.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for op in dis.get_instructions(value)):
            raise _Opaque(value)
        names = {name: value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__}
        copied = {name: copy.deepcopy(part, memo) for name, part in names.items() if isinstance(part, (list, dict, set))}
        cells = tuple(types.CellType(_copy(cell.cell_contents)) for cell in value.__closure__ or ())
        function = types.FunctionType(
            value.__code__, {**value.__globals__, **copied}, value.__name__, copy.deepcopy(value.__defaults__, memo), cells
        )
        function.__kwdefaults__ = copy.deepcopy(value.__kwdefaults__, memo)
        return function
    return copy.deepcopy(value, memo)


def _parts(value: Any) -> list[Any]:
    """The objects directly inside a value."""
    if isinstance(value, types.MethodType):
        return [value.__self__, *_parts(value.__self__)]
    if isinstance(value, types.FunctionType):
        return [cell.cell_contents for cell in value.__closure__ or ()]
    return [value, *getattr(value, "__dict__", {}).values()]


def fingerprint(value: Any) -> str:
    """A digest of everything reachable that could change.

    Args:
        value: any object.

    Returns:
        `str`: SHA-256 in hexadecimal.

    Raises:
        Exception: something in it cannot be read.
    """
    digest = hashlib.sha256()
    _feed(digest, value, set())
    return digest.hexdigest()


def _feed(digest: Any, value: Any, seen: set[int]) -> None:
    digest.update(type(value).__qualname__.encode())
    if isinstance(value, _ATOMS):
        digest.update(repr(value).encode())
        return
    if id(value) in seen or isinstance(value, (*_SHARED, types.ModuleType, types.BuiltinFunctionType)):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        digest.update(repr((value.shape, value.dtype)).encode())
        digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    elif isinstance(value, torch.Generator):
        _feed(digest, value.get_state(), seen)
    elif isinstance(value, dict):
        for key, part in value.items():
            _feed(digest, key, seen)
            _feed(digest, part, seen)
    elif isinstance(value, (list, tuple)):
        for part in value:
            _feed(digest, part, seen)
    elif isinstance(value, (set, frozenset)):
        digest.update(repr(sorted(map(repr, value))).encode())
    elif isinstance(value, types.MethodType):
        _feed(digest, value.__self__, seen)
    elif isinstance(value, functools.partial):
        _feed(digest, (value.func, value.args, value.keywords), seen)
    elif isinstance(value, types.FunctionType):
        _feed(digest, [cell.cell_contents for cell in value.__closure__ or ()], seen)
        _feed(digest, (value.__defaults__, value.__kwdefaults__, value.__dict__), seen)
        held = [value.__globals__.get(name) for name in value.__code__.co_names]
        _feed(digest, [part for part in held if isinstance(part, (list, dict, set))], seen)
    elif hasattr(value, "__dict__") and type(value).__reduce_ex__ is object.__reduce_ex__:
        _feed(digest, dict(vars(value)), seen)
    else:
        raise _Opaque(value)
