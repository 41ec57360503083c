"""Whether code can change what outlives its call, read from its source.

A probe sees what a few calls change. What begins to remember later, when some token comes up, shows it here alone.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from transformers.generation import logits_process as hf

from .reach import Opaque, is_library, is_own, parts


# methods of Python's containers that change them; those of tensors end with an underscore
_CHANGING = {*"add append appendleft clear discard extend extendleft insert pop popitem popleft".split()}
_CHANGING |= {*"put remove setdefault update".split()}
_NEW = {"clone", "copy", "new_full", "new_ones", "new_tensor", "new_zeros"}
# functions that hand out what they were given, in loops and alone
_HANDING_OUT = {"enumerate", "filter", "getattr", "iter", "next", "reversed", "vars", "zip"}
# methods that run without being named
_UNNAMED = {f"__{name}__" for name in "call contains enter exit getattr getattribute getitem iter len next".split()}
# they change whenever they are used, and their code is not read
_REMEMBERING = (
    torch.Generator,
    hf.SynthIDTextWatermarkLogitsProcessor,
    hf.UnbatchedClassifierFreeGuidanceLogitsProcessor,
)


def may_begin_to_remember(value: Callable[..., Any]) -> bool:
    """Whether calling a processor may run code that changes what the processor, a closure or a module holds.

    Args:
        value (`Callable`): any callable object.

    Returns:
        `bool`: `True` also where the source of its code is not at hand. What it is told through other names, such as
            arguments of a function of its own, is not followed.
    """
    try:
        return any(_is_remembering(part) for part in _called(value))
    except Opaque:
        return True


def _is_remembering(part: Any) -> bool:
    if isinstance(part, types.FunctionType):
        return is_own(part) and _changes(part)
    bound = isinstance(part, types.BuiltinFunctionType)  # such as the `append` of a list
    return isinstance(part, _REMEMBERING) or (bound and _is_changing(part.__name__))


def _called(value: Any) -> Iterator[Any]:
    """What a call may reach; of the methods of classes only those that something else in reach names."""
    named, waiting = set(_UNNAMED), [value]
    kinds: set[type] = set()
    # kept alive, so that no other object can get an id that was seen
    seen: dict[int, Any] = {}
    while waiting:
        new = [part for part in parts(waiting) if id(part) not in seen]
        seen.update((id(part), part) for part in new)
        yield from new
        for part in new:
            kinds.update(part.__mro__ if isinstance(part, type) else type(part).__mro__)
            if isinstance(part, types.FunctionType) and is_own(part):
                named.update(_names(part.__code__))
        methods = [item for kind in kinds for item in _functions(kind)]
        waiting = [function for name, function in methods if name in named and id(function) not in seen]


def _functions(kind: type) -> Iterator[tuple[str, types.FunctionType]]:
    """A class's own methods, with those behind properties and the like."""
    for name, part in vars(kind).items():
        found = getattr(part, "fget", None) or getattr(part, "__func__", part)
        if isinstance(found, types.FunctionType) and is_own(found):
            yield name, found


def _names(code: types.CodeType) -> set[str]:
    inner = [_names(part) for part in code.co_consts if isinstance(part, types.CodeType)]
    return set(code.co_names).union(*inner)


def _changes(function: types.FunctionType) -> bool:
    if function.__name__ == "<lambda>":
        # its source is a piece of a line, and all it can do is call
        return any(map(_is_changing, _names(function.__code__)))
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function.__code__)))
    except (OSError, SyntaxError, TypeError):
        return True
    modules = [item for item in function.__globals__.items() if isinstance(item[1], types.ModuleType)]
    return _Function(tree, {name for name, module in modules if is_library(module.__name__)}).changes()


def _is_changing(method: str) -> bool:
    return method in _CHANGING or (method.endswith("_") and not method.endswith("__"))


class _Function:
    """One function's source, with those written inside it."""

    def __init__(self, tree: ast.AST, libraries: set[str]) -> None:
        self.nodes, self.libraries = list(ast.walk(tree)), libraries
        names = {node.id for node in self.nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
        arguments = {node.arg for node in self.nodes if isinstance(node, ast.arg)}
        self.own = (names | arguments) - {name for node in self.nodes for name in _kept_defaults(node)}
        # own names for what is held elsewhere
        self.aliases: set[str] = set()
        while True:
            found = set(self._aliases())
            if found <= self.aliases:
                break
            self.aliases |= found

    def _aliases(self) -> Iterator[str]:
        for target, value in self._given():
            if any(map(self._is_held, _handed_out(value))):
                yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))

    def _given(self) -> Iterator[tuple[ast.AST, ast.AST]]:
        """What gets a value, and the value or where it comes from."""
        for node in self.nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                        yield from zip(target.elts, node.value.elts, strict=False)
                    else:
                        yield target, node.value
            elif isinstance(node, (ast.For, ast.comprehension)):
                yield node.target, node.iter
            elif isinstance(node, ast.NamedExpr):
                yield node.target, node.value

    def _is_held(self, node: ast.AST) -> bool:
        """Whether an expression is something that was there before the call, or a part of it."""
        if isinstance(node, ast.Name):
            return node.id in self.aliases or node.id not in self.own | self.libraries
        if isinstance(node, ast.Attribute):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            return not (isinstance(root, ast.Name) and root.id in self.libraries)
        return isinstance(node, ast.Subscript) and self._is_held(node.value)

    def changes(self) -> bool:
        """Whether it stores into something held."""
        return any(map(self._stores, self.nodes))

    def _stores(self, node: ast.AST) -> bool:
        if isinstance(node, (ast.Nonlocal, ast.Global)):
            return True
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            return _is_changing(node.attr) and self._is_held(_giver(node.value))
        if isinstance(node, ast.Call):
            sets = isinstance(node.func, ast.Name) and node.func.id in ("delattr", "exec", "setattr")
            return sets or any(word.arg == "out" and self._is_held(word.value) for word in node.keywords)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            return self._is_held(node.target)
        if isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
            return isinstance(node, ast.Attribute) or (isinstance(node, ast.Subscript) and self._is_held(node.value))
        return False


def _giver(node: ast.AST) -> ast.AST:
    """What a chain of calls starts from, unless one of them makes something new."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr not in _NEW:
        node = node.func.value
    return node


def _kept_defaults(node: ast.AST) -> Iterator[str]:
    """Arguments whose default is made once and may be changed by every call."""
    if isinstance(node, ast.arguments):
        given = [*node.posonlyargs, *node.args]
        defaults = [*zip(given[len(given) - len(node.defaults) :], node.defaults, strict=True)]
        for argument, default in [*defaults, *zip(node.kwonlyargs, node.kw_defaults, strict=True)]:
            if default is not None and not isinstance(default, ast.Constant):
                yield argument.arg


def _handed_out(value: ast.AST) -> Iterable[ast.AST]:
    """What the names that take a value may stand for."""
    if isinstance(value, (ast.Tuple, ast.List)):
        return value.elts
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in _HANDING_OUT:
        return value.args
    return [value]
