"""Replacements of Python's numeric functions that accept symbolic numbers and record the call.

While a step with symbolic numbers is recorded, they replace those in ``math`` and in the modules of
running code. On plain numbers they do what Python's do.
"""

from __future__ import annotations

import builtins
import dis
import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import CodeType
from typing import Any

import torch

from ..._torch.names import patched, standing_for
from ..._torch.symbolic import Type, standing_in
from .node import Node
from .number import node_of, written

_Function = Callable[..., Any]


def _value(given: Any) -> Any:
    """The number in a tensor that Python would convert."""
    asked = isinstance(given, torch.Tensor) and given.numel() == 1 and not given.is_complex()
    return given.item() if asked else given


def _first(values: Any) -> Node | None:
    nodes = (node_of(value) for value in values)
    return next((node for node in nodes if node is not None), None)


def _of_numbers(plain: _Function) -> _Function:
    @functools.wraps(plain)
    def function(*args: Any, **named: Any) -> Any:
        values = tuple(map(_value, args))
        node = None if named else _first(values)
        if node is None or not all(isinstance(value, (int, float)) for value in values):
            return plain(*args, **named)
        return written(node, plain, values)

    return function


def _extreme(plain: _Function) -> _Function:
    """``min`` or ``max``; of operands of two types, which one it is becomes a branch."""

    @functools.wraps(plain)
    def function(*args: Any, **named: Any) -> Any:
        args = args if named or len(args) > 1 else tuple(map(_listed, args))
        values = args[0] if len(args) == 1 and type(args[0]) is list else args
        node = None if named or len(values) < 2 else _first(values)
        if node is None or len({value.__class__ for value in values}) > 1:
            return plain(*args, **named)
        return written(node, plain, args)

    return function


@functools.wraps(builtins.sum)
def _sum(values: Any, /, *start: Any, **named: Any) -> Any:
    values = values if named else _listed(values)
    node = _first(values) if type(values) is list else None
    if node is None or start or not all(isinstance(one, (int, float)) for one in values):
        return sum(values, *start, **named)
    return written(node, sum, (values,))


def _listed(values: Any) -> Any:
    """The operand of a reduction, iterated once into a list; a tensor as it is."""
    return values if isinstance(values, torch.Tensor) else list(values)


class _Kind(type):
    """The metaclass of the replacements of ``float`` and ``int``: their calls and type checks."""

    def __call__(cls, *args: Any, **named: Any) -> Any:
        plain = cls.__mro__[1]
        if len(args) != 1 or named:
            return plain(*args, **named)
        value = _value(args[0])
        node = node_of(value)
        return plain(value) if node is None else written(node, plain, (value,))

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.__mro__[1])

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls.__mro__[1])


class _Float(float, metaclass=_Kind):
    pass


class _Int(int, metaclass=_Kind):
    pass


_MATH = {
    name: _of_numbers(function)
    for name, function in vars(math).items()
    if callable(function) and not name.startswith("_")
}
_BY_ID = {id(getattr(math, name)): function for name, function in _MATH.items()}
_BUILTINS: dict[str, object] = {
    "min": _extreme(builtins.min),
    "max": _extreme(builtins.max),
    "sum": _sum,
    "type": Type,
}
_CALLED: dict[str, object] = {"float": _Float, "int": _Int}
"""Replacements of a class where it is called, and there alone."""


def _names(
    own: set[tuple[int, str]], namespace: dict[str, Any], code: CodeType | None
) -> dict[str, object]:
    """The replacements under other names in a module of the user's.

    ``own``: (module, name) of those that stay Python's own.
    """
    found = _whatever_use(namespace)
    for name, made in _CALLED.items():
        if code is None or name in _kept(code):
            own.add((id(namespace), name))
        if (id(namespace), name) not in own and name not in namespace:
            found[name] = made
        elif (id(namespace), name) in own and namespace.get(name) is made:
            del namespace[name]
    return found


def _whatever_use(namespace: dict[str, Any]) -> dict[str, object]:
    """The replacements of functions, which are more than called perhaps."""
    found = {name: made for name, made in _BUILTINS.items() if name not in namespace}
    found.update((n, _BY_ID[id(v)]) for n, v in namespace.items() if id(v) in _BY_ID)
    return found


@functools.lru_cache(maxsize=4096)
def _kept(code: CodeType) -> frozenset[str]:
    """The uses of ``float`` and ``int`` in code other than calls and type checks.

    Before Python 3.11 calls cannot be recognized.
    """
    found = {name for name in _CALLED if name in code.co_names}
    if sys.version_info >= (3, 11):
        lines = [one for one in dis.get_instructions(code) if one.opname not in _SKIPPED]
        loads = [n for n, one in enumerate(lines) if one.argval in found and "LOAD" in one.opname]
        found = {lines[n].argval for n in loads if not (_is_called(lines[n]) or _asks(lines, n))}
    inner = (_kept(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(found.union(*inner))


_SKIPPED = frozenset({"CACHE", "PRECALL", "EXTENDED_ARG", "PUSH_NULL"})


def _is_called(line: dis.Instruction) -> bool:
    return line.opname == "LOAD_GLOBAL" and bool((line.arg or 0) & 1)


def _asks(lines: list[dis.Instruction], number: int) -> bool:
    """True for the second argument of ``isinstance``, or one of a tuple that is that."""
    after, before = number + 1, number - 1
    while after < len(lines) and lines[after].opname in ("LOAD_GLOBAL", "BUILD_TUPLE"):
        after += 1
    while (
        before >= 0 and lines[before].opname.startswith("LOAD_") and not _is_called(lines[before])
    ):
        before -= 1
    asks = before >= 0 and lines[before].argval == "isinstance"
    return asks and after < len(lines) and lines[after].opname.startswith("CALL")


@contextmanager
def following(namespaces: Sequence[dict[str, Any]] = ()) -> Iterator[None]:
    """Install the replacements in the block, in the modules of the code that runs.

    ``namespaces``: others, in which only replacements that stand for any use are put.
    """
    with ExitStack() as stack:
        for name, function in _MATH.items():
            stack.enter_context(patched(math, name, function))
        own: set[tuple[int, str]] = set()
        for namespace in namespaces:
            stack.enter_context(standing_for(namespace, _whatever_use(namespace)))
        stack.enter_context(standing_in([], functools.partial(_names, own)))
        yield
