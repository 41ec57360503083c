"""What a copy shares with its original: attributes of classes, what functions name in globals, random generators."""

from __future__ import annotations

import contextlib
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from .reach import held, is_library, is_own, is_shared, parts


@contextlib.contextmanager
def undisturbed(value: Any) -> Iterator[None]:
    """Puts back what calls of copies change in what the original sees too.

    Args:
        value: an object of which copies are called inside the block.
    """
    restorers = [_restorer(part) for part in _around(value)]
    drawn = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(drawn[0])
            np.random.set_state(drawn[1])
            for restore in restorers:
                restore()


def _around(value: Any) -> list[Any]:
    """Classes of the caller's that a value is made of or names, and all that their attributes and functions hold."""
    classes: dict[type, None] = {}
    functions: dict[int, types.FunctionType] = {}
    shared: dict[int, Any] = {}
    reached = parts(value)
    while True:
        kinds = {kind: None for part in reached for kind in (part if isinstance(part, type) else type(part)).__mro__}
        new = [kind for kind in kinds if kind not in classes and not is_library(kind.__module__)]
        attributes = [part for kind in new for name, part in vars(kind).items() if not name.startswith("__")]
        methods = [part for kind in new for part in vars(kind).values()]
        called = [part for part in (*reached, *methods) if isinstance(part, types.FunctionType) and is_own(part)]
        called = [function for function in called if id(function) not in functions]
        if not new and not called:
            return [*classes, *shared.values()]
        classes.update(dict.fromkeys(new))
        functions.update((id(function), function) for function in called)
        reached = parts([*attributes, *(part for one in called for part in held(one).values())])
        shared.update({id(part): part for part in reached if not is_shared(part) and not isinstance(part, type)})


def _restorer(part: Any) -> Callable[[], None]:
    """Remembers what a part holds; only what has changed is written, as others may be reading it."""
    if isinstance(part, type):
        kept = {name: value for name, value in vars(part).items() if not name.startswith("__")}
        return lambda: _restore_class(part, kept)
    if isinstance(part, torch.Tensor):
        values = part.detach().clone()
        return lambda: None if torch.equal(part, values) else _copy_back(part, values)
    if isinstance(part, np.ndarray):
        array = part.copy()
        return lambda: np.copyto(part, array)
    if isinstance(part, list):
        items = list(part)
        return lambda: None if _are_same(part, items) else part.__setitem__(slice(None), items)
    held_in = part if isinstance(part, (dict, set)) else getattr(part, "__dict__", None)
    if not isinstance(held_in, (dict, set)):
        return lambda: None
    content = held_in.copy()
    return lambda: None if _are_same(held_in, content) else _refill(held_in, content)


def _are_same(now: Any, before: Any) -> bool:
    """Whether two containers of a kind hold the very same objects, in the same order."""
    if len(now) != len(before):
        return False
    values = (now.values(), before.values()) if isinstance(now, dict) else ((), ())
    return all(a is b for a, b in [*zip(now, before, strict=True), *zip(*values, strict=True)])


def _refill(container: dict[Any, Any] | set[Any], content: Any) -> None:
    container.clear()
    container.update(content)


def _copy_back(tensor: torch.Tensor, values: torch.Tensor) -> None:
    tensor.detach().copy_(values)


def _restore_class(kind: type, kept: dict[str, Any]) -> None:
    for name in [name for name in vars(kind) if not name.startswith("__") and name not in kept]:
        delattr(kind, name)
    for name, value in kept.items():
        if vars(kind).get(name) is not value:
            setattr(kind, name, value)
