"""Everything an object can reach that might change: as a digest, or part by part."""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase


_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, enum.Enum)
_ATOMS = (*_PLAIN, torch.dtype, torch.device, torch.Size)
_CONTAINERS = (list, dict, set, torch.Tensor, np.ndarray)
# their classes keep no state for a processor
_LIBRARIES = {*sys.stdlib_module_names, "torch", "transformers", "tokenizers", "numpy"}
# what grammars are compiled to, and who works on them: large, and the same for ever.
# Known by name, so that nobody needs these packages.
_COMPILED = {
    ("xgrammar.compiler", "CompiledGrammar"),
    ("xgrammar.compiler", "GrammarCompiler"),
    ("xgrammar.grammar", "Grammar"),
    ("xgrammar.matcher", "BatchGrammarMatcher"),
    ("xgrammar.tokenizer_info", "TokenizerInfo"),
    ("builtins", "LLExecutor"),
    ("builtins", "LLTokenizer"),
    ("builtins", "Index"),
    ("builtins", "Vocabulary"),
    ("outlines_core", "Index"),
    ("outlines_core", "Vocabulary"),
}


class Opaque(Exception):
    """Something whose state cannot be read."""


def is_shared(part: Any) -> bool:
    """Whether a part is too large to copy, and not what a processor keeps its own state in."""
    kind = type(part)
    shared = isinstance(part, (torch.nn.Module, PreTrainedTokenizerBase, types.ModuleType))
    return shared or (kind.__module__, kind.__name__) in _COMPILED


def is_own(function: types.FunctionType) -> bool:
    """Whether a function is the caller's: those of Python's and Transformers' libraries remember nothing."""
    return not is_library(function.__module__ or "")


def is_library(module: str) -> bool:
    """Whether a module is Python's, or one of those that keep no state for a processor."""
    return module.partition(".")[0] in _LIBRARIES


def fingerprint(value: Any, strict: bool = True) -> str:
    """A digest of everything reachable that could change.

    Args:
        value: any object.
        strict (`bool`): whether to fail on what cannot be read; else its class is all that counts of it.

    Returns:
        `str`: SHA-256 in hexadecimal.

    Raises:
        Exception: something in it cannot be read.
    """
    digest = hashlib.sha256()
    _Reader(strict, digest.update).feed(value)
    return digest.hexdigest()


def digest_or_unreadable(value: Any, grammars: bool = False) -> str:
    """[`fingerprint`], or `"unreadable"` for what is then known by its class alone.

    Args:
        value: any object.
        grammars (`bool`): whether what compiled grammars say counts too, which does not change while a call runs.
    """
    digest = hashlib.sha256()

    def is_leaf(part: Any) -> bool:
        if grammars:
            digest.update(_grammar(part))
        return is_shared(part)

    try:
        _Reader(True, digest.update, is_leaf).feed(value)
    except Exception:  # whatever a foreign object raises here
        return "unreadable"
    return digest.hexdigest()


def _grammar(part: Any) -> bytes:
    """What a compiled grammar says; nothing for other parts."""
    kind = (type(part).__module__, type(part).__name__)
    if kind == ("xgrammar.compiler", "CompiledGrammar"):
        return str(part.grammar).encode()
    if kind[1] == "Index" and kind in _COMPILED:
        # as it is pickled: by a function and its bytes
        return bytes(part.__reduce__()[1][0])
    return b""


def parts(value: Any, is_leaf: Callable[[Any], bool] = is_shared) -> list[Any]:
    """Every part that can be reached, the value itself first, but nothing through classes, which copies share.

    Args:
        value: any object.
        is_leaf (`Callable`): whether not to go on into a part.
    """
    reader = _Reader(strict=False, tell=None, is_leaf=is_leaf)
    reader.feed(value)
    return list(reader.seen.values())


class _Reader:
    """Walks what an object holds, each part once."""

    def __init__(
        self,
        strict: bool,
        tell: Callable[[bytes], None] | None,
        is_leaf: Callable[[Any], bool] = is_shared,
    ) -> None:
        self.strict, self._told, self._is_leaf = strict, tell, is_leaf
        # kept alive, so that no other object can get an id that was seen
        self.seen: dict[int, Any] = {}

    def _tell(self, read: Callable[[], bytes]) -> None:
        """Adds to the digest, if there is one; large tensors are not read for nothing."""
        if self._told is not None:
            self._told(read())

    def _opaque(self, value: Any) -> None:
        if self.strict:
            raise Opaque(value)

    def feed(self, value: Any) -> None:
        """Takes in a value and all it holds."""
        self._tell(type(value).__qualname__.encode)
        if isinstance(value, (*_ATOMS, type)):
            self._tell(lambda: repr(value).encode())
        if isinstance(value, _ATOMS) or id(value) in self.seen:
            return
        self.seen[id(value)] = value
        if self._is_leaf(value):
            return
        if isinstance(value, type):
            if self._told is not None and not is_library(value.__module__):
                kept = (types.FunctionType, *_ATOMS, *_CONTAINERS)
                own = [(name, part) for name, part in vars(value).items() if isinstance(part, kept)]
                self.feed([part for name, part in own if callable(part) or not name.startswith("__")])
                self.feed(value.__bases__)
        elif isinstance(value, torch.Tensor):
            self._tell(lambda: repr((value.shape, value.dtype)).encode())
            self._tell(lambda: _bytes_of(value))
        elif isinstance(value, np.ndarray):
            self._tell(lambda: repr((value.shape, value.dtype)).encode())
            if value.dtype.hasobject:
                self.feed(value.tolist())
            else:
                self._tell(value.tobytes)
        elif isinstance(value, torch.Generator):
            self.feed(value.get_state())
        elif isinstance(value, dict):
            for key, part in value.items():
                self.feed(key)
                self.feed(part)
        elif isinstance(value, (list, tuple)):
            for part in value:
                self.feed(part)
        elif isinstance(value, (set, frozenset)):
            self._tell(lambda: repr(sorted(map(repr, value))).encode())
        elif isinstance(value, (types.MethodType, types.BuiltinFunctionType)):
            self.feed((value.__self__, getattr(value, "__func__", None)))
        elif isinstance(value, functools.partial):
            self.feed((value.func, value.args, value.keywords))
        elif isinstance(value, types.FunctionType):
            for code in codes_of(value.__code__):
                self._tell(lambda code=code: code.co_code)  # type: ignore[misc]
                self.feed([part for part in code.co_consts if not isinstance(part, types.CodeType)])
            self.feed([cell.cell_contents for cell in value.__closure__ or ()])
            self.feed((value.__defaults__, value.__kwdefaults__, value.__dict__, held(value)))
        elif type(value).__reduce_ex__ is object.__reduce_ex__ and not isinstance(value, Iterator):
            attributes = [item for kind in type(value).__mro__ for item in vars(kind).items()]
            described = [name for name, part in attributes if isinstance(part, types.MemberDescriptorType)]
            if not described and not hasattr(value, "__dict__"):
                self._opaque(value)
            self.feed({name: getattr(value, name) for name in described if hasattr(value, name)})
            self.feed((dict(getattr(value, "__dict__", {})), type(value)))
        else:
            self._opaque(value)


def _bytes_of(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().cpu().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def held(function: types.FunctionType) -> dict[str, Any]:
    """Globals a function can keep state in: containers, and what its own module made. Assigning one is state."""
    if not is_own(function):
        return {}
    names, assigns = _globals_of(function.__code__)
    if assigns:
        raise Opaque(function)
    known = {name: function.__globals__[name] for name in names if name in function.__globals__}
    return {
        name: part
        for name, part in known.items()
        if isinstance(part, _CONTAINERS)
        or (not is_shared(part) and getattr(part, "__module__", None) == function.__module__)
    }


@functools.lru_cache(1024)
def _globals_of(code: types.CodeType) -> tuple[list[str], bool]:
    """Names a function's code may mean globals by, and whether it assigns one."""
    codes = list(codes_of(code))
    operations = {instruction.opname for part in codes for instruction in dis.get_instructions(part)}
    names = {name for part in codes for name in part.co_names}
    return sorted(names), not operations.isdisjoint(("STORE_GLOBAL", "DELETE_GLOBAL"))


def codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code and that of the functions written inside it."""
    yield code
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from codes_of(part)
