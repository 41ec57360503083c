"""Whether a processor of unknown class remembers its calls: asked on a copy, before the first token.

A processor is taken as stateless only if a copy of it can be made, calls leave the copy as it was, and equal prefixes
get equal answers whatever was asked in between. In doubt it counts as stateful.
"""

from __future__ import annotations

import copy
import dis
import enum
import functools
import hashlib
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase


# too large to copy, and not what a processor keeps its own state in
_SHARED = (torch.nn.Module, PreTrainedTokenizerBase)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, enum.Enum)
_ATOMS = (*_PLAIN, torch.dtype, torch.device, torch.Size)
_CONTAINERS = (list, dict, set, torch.Tensor, np.ndarray)
# their classes keep no state for a processor
_LIBRARIES = {*sys.stdlib_module_names, "torch", "transformers", "tokenizers", "numpy"}


class _Opaque(Exception):
    """Something whose state cannot be read."""


# `call(copy, input_ids, row)` asks a copy about prefixes `(B, L)` and returns its answers `(B, ...)`; given a row, the
# other rows come with other scores than without
Call = Callable[[Any, torch.Tensor, int | None], torch.Tensor]


def is_stateless(processor: Callable[..., Any], call: Call, prompt: torch.Tensor) -> bool:
    """Probes a copy of `processor`; the original is not called.

    Args:
        processor (`Callable`): a processor, a `prefix_allowed_tokens_fn` or a stopping criterion.
        call (`Call`): how to ask it.
        prompt (`torch.LongTensor` of shape `(B, P)`): the prefixes of the first real call.

    Returns:
        `bool`: `True` only if nothing speaks for hidden state.
    """

    def ask(subject: Any) -> bool:
        before = fingerprint((subject, _generators(prompt.device)))
        first = call(subject, prompt, None)
        longer = torch.cat([prompt, first.reshape(len(prompt), -1).argmax(dim=-1, keepdim=True).to(prompt)], dim=1)
        call(subject, longer, None)
        again = call(subject, prompt, None)
        return torch.equal(first, again) and fingerprint((subject, _generators(prompt.device))) == before

    return _without_doubt(processor, ask, prompt.device)


def treats_rows_alone(processor: Callable[..., Any], call: Call, prompt: torch.Tensor) -> bool:
    """Whether a stateless processor's answer about a row stays the same whatever the other rows of the batch show.

    Args:
        processor (`Callable`): a stateless processor or criterion; a copy of it is asked.
        call (`Call`): how to ask it.
        prompt (`torch.LongTensor` of shape `(B, P)`): the prefixes of the first real call.

    Returns:
        `bool`: `True` only if no row's answer moved, and it did not fail on other rows' tokens.
    """

    def ask(subject: Any) -> bool:
        first = call(subject, prompt, None)
        for row in range(len(prompt)):
            others = prompt.roll(1, dims=1)
            others[row] = prompt[row]
            if not torch.equal(call(subject, others, row)[row], first[row]):
                return False
        return True

    return _without_doubt(processor, ask, prompt.device)


def _without_doubt(processor: Callable[..., Any], ask: Callable[[Any], bool], device: torch.device) -> bool:
    """The answer about a copy; random generators are put back, and a failure counts as a no."""
    drawn = (random.getstate(), np.random.get_state())
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            reached: dict[int, Any] = {}
            _feed(hashlib.sha256(), processor, reached)
            return ask(_copy(processor, {key: part for key, part in reached.items() if isinstance(part, _SHARED)}))
        except Exception:  # whatever a foreign object raises here, it leaves us in doubt
            return False
        finally:
            random.setstate(drawn[0])
            np.random.set_state(drawn[1])


def _generators(device: torch.device) -> tuple[Any, ...]:
    """The states of the random generators that belong to nobody."""
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return torch.get_rng_state(), cuda, random.getstate(), np.random.get_state()


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    """A deep copy that also reaches what plain functions close over, name and are given as defaults."""
    if isinstance(value, functools.partial):
        given = copy.deepcopy((value.args, value.keywords), memo)
        return functools.partial(_copy(value.func, memo), *given[0], **given[1])
    if id(value) in memo:
        return memo[id(value)]
    if not isinstance(value, types.FunctionType):
        return copy.deepcopy(value, memo)
    cells, names = tuple(types.CellType() for _ in value.__closure__ or ()), dict(value.__globals__)
    defaults = copy.deepcopy(value.__defaults__, memo)
    function = types.FunctionType(value.__code__, names, value.__name__, defaults, cells)
    function.__kwdefaults__ = copy.deepcopy(value.__kwdefaults__, memo)
    memo[id(value)] = function
    names.update({name: _copy(part, memo) for name, part in _held(value).items()})
    for cell, theirs in zip(cells, value.__closure__ or (), strict=True):
        cell.cell_contents = _copy(theirs.cell_contents, memo)
    return function


def _held(function: types.FunctionType) -> dict[str, Any]:
    """Globals a function can keep state in: containers, and what its own module made. Assigning one is state."""
    names: set[str] = set()
    if (function.__module__ or "").partition(".")[0] in _LIBRARIES:
        return {}
    for code in _codes(function.__code__):
        names.update(code.co_names)
        if any(op.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for op in dis.get_instructions(code)):
            raise _Opaque(function)
    parts = {name: function.__globals__[name] for name in sorted(names & function.__globals__.keys())}
    return {
        name: part
        for name, part in parts.items()
        if isinstance(part, _CONTAINERS)
        or (not isinstance(part, _SHARED) and getattr(part, "__module__", None) == function.__module__)
    }


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code and that of the functions written inside it."""
    yield code
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _codes(part)


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
    _feed(digest, value, {})
    return digest.hexdigest()


def digest_or_unreadable(value: Any) -> str:
    """[`fingerprint`], or `"unreadable"` for what is then known by its class alone."""
    try:
        return fingerprint(value)
    except Exception:  # whatever a foreign object raises here
        return "unreadable"


def _feed(digest: Any, value: Any, seen: dict[int, Any]) -> None:
    digest.update(type(value).__qualname__.encode())
    if isinstance(value, (*_ATOMS, type)):
        digest.update(repr(value).encode())
    if isinstance(value, (*_ATOMS, types.ModuleType)) or id(value) in seen:
        return
    # kept alive, so that no other object can get its id
    seen[id(value)] = value
    if isinstance(value, _SHARED):
        return
    if isinstance(value, type):
        if value.__module__.partition(".")[0] not in _LIBRARIES:
            kept = (types.FunctionType, *_ATOMS, *_CONTAINERS)
            own = [(name, part) for name, part in vars(value).items() if isinstance(part, kept)]
            _feed(digest, [part for name, part in own if callable(part) or not name.startswith("__")], seen)
            _feed(digest, value.__bases__, seen)
    elif isinstance(value, torch.Tensor):
        digest.update(repr((value.shape, value.dtype)).encode())
        digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    elif isinstance(value, np.ndarray):
        digest.update(repr((value.shape, value.dtype)).encode())
        _feed(digest, value.tolist() if value.dtype.hasobject else value.tobytes(), seen)
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
    elif isinstance(value, (types.MethodType, types.BuiltinFunctionType)):
        _feed(digest, (value.__self__, getattr(value, "__func__", None)), seen)
    elif isinstance(value, functools.partial):
        _feed(digest, (value.func, value.args, value.keywords), seen)
    elif isinstance(value, types.FunctionType):
        for code in _codes(value.__code__):
            digest.update(code.co_code)
            _feed(digest, [part for part in code.co_consts if not isinstance(part, types.CodeType)], seen)
        _feed(digest, [cell.cell_contents for cell in value.__closure__ or ()], seen)
        _feed(digest, (value.__defaults__, value.__kwdefaults__, value.__dict__, _held(value)), seen)
    elif type(value).__reduce_ex__ is object.__reduce_ex__ and not isinstance(value, Iterator):
        attributes = [item for kind in type(value).__mro__ for item in vars(kind).items()]
        described = [name for name, part in attributes if isinstance(part, types.MemberDescriptorType)]
        if not described and not hasattr(value, "__dict__"):
            raise _Opaque(value)
        _feed(digest, {name: getattr(value, name) for name in described if hasattr(value, name)}, seen)
        _feed(digest, (dict(getattr(value, "__dict__", {})), type(value)), seen)
    else:
        raise _Opaque(value)
