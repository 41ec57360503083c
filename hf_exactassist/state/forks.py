"""Independent copies of objects that remember, and putting a copy's memory back into the original."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer
from transformers.generation import SynthIDTextWatermarkLogitsProcessor

from .reach import held, is_own, is_shared, parts


# methods by which other libraries' objects copy themselves
_OWN_COPY = ("fork", "deep_copy")


def fork(value: Any, isolated: bool = False) -> Any:
    """A copy that goes on by itself.

    Models, tokenizers and compiled grammars stay shared. Parts that can copy themselves (`fork()`, `deep_copy()`) do;
    the rest is copied as `copy.deepcopy` does, and also what functions close over and are given as defaults.

    Args:
        value: a processor, a function, or several of them in a tuple: what they share, their copies share.
        isolated (`bool`): whether functions get copies of the globals they name too.

    Raises:
        Exception: something in it cannot be copied.
    """
    return _Copying({}, isolated).copy_all(value)


class _Copying:
    """One copy: a memo for `deepcopy`, with the copies that it could not make itself."""

    def __init__(self, memo: dict[int, Any], isolated: bool = False) -> None:
        self.memo, self.isolated = memo, isolated

    def copy_all(self, value: Any) -> Any:
        """A copy of a value and all it holds."""
        self.prepare(value)
        return self.copy(value)

    def prepare(self, value: Any) -> None:
        """Makes the copies that `deepcopy` must find ready."""
        functions, methods = [], []
        for part in parts(value, is_leaf=self._is_whole):
            if id(part) in self.memo:
                continue
            if is_shared(part):
                self.memo[id(part)] = part
            elif isinstance(part, torch.Generator):
                self.memo[id(part)] = part.clone_state()
            elif isinstance(part, types.FunctionType):
                if self._may_remember(part):
                    functions.append(part)
            elif isinstance(part, types.BuiltinFunctionType):
                methods.append(part)
            elif isinstance(part, (DynamicLayer, SynthIDTextWatermarkLogitsProcessor)):
                # the first only ever replaces its tensors, the second only reads its table and keys
                names = ("keys", "values", "sampling_table")
                self.memo.update({id(vars(part)[name]): vars(part)[name] for name in names if name in vars(part)})
        for function in functions:
            self._shell(function)
        for method in methods:
            # such as the `append` of a list
            if not isinstance(method.__self__, (types.ModuleType, type(None))):
                self.memo[id(method)] = getattr(self.copy(method.__self__), method.__name__)
        for function in functions:
            self._fill(function)

    def _is_whole(self, part: Any) -> bool:
        """Whether a part is not looked into: it stays shared, or has just copied itself."""
        if is_shared(part):
            return True
        for name in () if isinstance(part, (type, torch.Tensor)) or id(part) in self.memo else _OWN_COPY:
            method = getattr(part, name, None)
            theirs = method() if callable(method) else None
            if type(theirs) is type(part):
                self.memo[id(part)] = theirs
                return True
        return False

    def copy(self, value: Any) -> Any:
        """A copy of one part."""
        if id(value) in self.memo:
            return self.memo[id(value)]
        if type(value) is tuple:
            return tuple(self.copy(part) for part in value)
        if isinstance(value, functools.partial):
            theirs = functools.partial(self.copy(value.func), *self.copy(value.args), **self.copy(value.keywords))
            self.memo[id(value)] = theirs
            return theirs
        if isinstance(value, types.MethodType):
            return types.MethodType(self.copy(value.__func__), self.copy(value.__self__))
        return copy.deepcopy(value, self.memo)

    def _shell(self, value: types.FunctionType) -> None:
        """Makes a function's copy without what it holds, which may be copies of functions again."""
        names = dict(value.__globals__) if self.isolated else value.__globals__
        cells = tuple(types.CellType() for _ in value.__closure__ or ())
        function = types.FunctionType(value.__code__, names, value.__name__, None, cells)
        function.__qualname__, function.__module__ = value.__qualname__, value.__module__
        self.memo[id(value)] = function

    def _fill(self, value: types.FunctionType) -> None:
        function = self.memo[id(value)]
        function.__defaults__, function.__kwdefaults__ = self.copy(value.__defaults__), self.copy(value.__kwdefaults__)
        function.__dict__.update(self.copy(value.__dict__))
        if self.isolated:
            function.__globals__.update({name: self.copy(part) for name, part in held(value).items()})
        for cell, theirs in zip(function.__closure__ or (), value.__closure__ or (), strict=True):
            cell.cell_contents = self.copy(theirs.cell_contents)

    def _may_remember(self, function: types.FunctionType) -> bool:
        holds = function.__closure__ or function.__defaults__ or function.__kwdefaults__ or function.__dict__
        return is_own(function) and bool(holds or self.isolated)


def put_back(originals: Sequence[Any], copies: Sequence[Any]) -> None:
    """Gives objects the memory of their copies; the copies keep theirs.

    The objects stay who they are, also where one of them refers to another; parts of them are replaced.

    Args:
        originals (`Sequence`): the objects.
        copies (`Sequence`): copies of them, made together by [`fork`].
    """
    pairs = [(_holder(original), _holder(theirs)) for original, theirs in zip(originals, copies, strict=True)]
    copying = _Copying({id(theirs): original for original, theirs in pairs})
    copying.prepare([theirs for _, theirs in pairs])
    for original, theirs in pairs:
        _rewrite(original, theirs, copying)


def _holder(value: Any) -> Any:
    """Who keeps the memory of something callable."""
    while isinstance(value, types.MethodType):
        value = value.__self__
    return value


def _rewrite(original: Any, theirs: Any, copying: _Copying) -> None:
    if isinstance(original, functools.partial):
        inner, saved = _holder(original.func), _holder(theirs.func)
        copying.memo[id(saved)] = inner
        _rewrite(inner, saved, copying)
        given = (copying.copy(theirs.args), copying.copy(theirs.keywords), copying.copy(vars(theirs)))
        original.__setstate__((original.func, *given))  # type: ignore[attr-defined]
        return
    if isinstance(original, types.FunctionType):
        for cell, saved in zip(original.__closure__ or (), theirs.__closure__ or (), strict=True):
            cell.cell_contents = copying.copy(saved.cell_contents)
        original.__defaults__ = copying.copy(theirs.__defaults__)
        original.__kwdefaults__ = copying.copy(theirs.__kwdefaults__)
    for kind in type(original).__mro__:
        for name, slot in vars(kind).items():
            if isinstance(slot, types.MemberDescriptorType) and not name.startswith("__") and hasattr(theirs, name):
                setattr(original, name, copying.copy(getattr(theirs, name)))
    if hasattr(original, "__dict__"):
        state = {name: copying.copy(part) for name, part in vars(theirs).items()}
        vars(original).clear()
        vars(original).update(state)
