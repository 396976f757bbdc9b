"""The op over lists that does to the rows of a column what an op does to one row.

Torch's give the bits of a loop over single ops, but for one: in half precision ``mul_`` by a number
computes in float32, and over lists it rounds the number first. Ops that mind their form are called
one by one, therefore, and the others are tried out before they take the place of a loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import fx

from ..._torch import OpOverload, below_autograd, overload_name, schema_of
from ..._torch.foreach import foreach
from ...ir.bits import same
from ...ir.values import neutral
from ..inplace.forms import minds_form

_UNARY = ("abs", "exp", "neg", "reciprocal", "sqrt")
_BINARY = ("add", "sub", "mul", "div")
_TERNARY = ("addcmul", "addcdiv", "lerp")
_OVERLOADS = ("", "default", "Tensor", "Scalar")
"""Overloads that take tensors and numbers alone: no rounding mode, no ``out``."""


class Repeated(NamedTuple):
    """A tensor that all rows share, where an op takes a list of tensors."""

    tensor: fx.Node


class OverLists(NamedTuple):
    """A call of an op over lists."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    """Columns, and what all rows share, in the order of the single op's."""
    keywords: dict[str, Any]
    written: fx.Node | None
    """The column that it writes in place, and then returns nothing; None for a fresh one."""


def over_lists(node: fx.Node, columns: Container[fx.Node]) -> OverLists | None:
    """The call that replaces one of ``node`` for each row; None where torch has none.

    Args:
        columns: the values of which each row has its own.
    """
    op = node.target
    if not isinstance(op, OpOverload) or op.namespace != "aten":
        return None
    name = schema_of(op).name.removeprefix("aten::")
    function = foreach(name)
    if function is None or overload_name(op) not in _OVERLOADS or minds_form(node):
        return None
    call = _Arguments(node, columns).of(name.removesuffix("_"))
    if call is None:
        return None
    first = node.args[0]
    assert isinstance(first, fx.Node)
    over = OverLists(function, *call, first if name.endswith("_") else None)
    return over if _agree(node, over, columns) else None


class _Arguments:
    """The arguments of a call, converted for an op over lists; None where they do not fit."""

    def __init__(self, node: fx.Node, columns: Container[fx.Node]) -> None:
        self._args, self._kwargs, self._columns = node.args, dict(node.kwargs), columns

    def of(self, name: str) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The arguments and keywords for the op ``name`` over lists; None where they do not fit."""
        if not (self._args and self._are_columns(self._args[:1])):
            return None
        known = {1: _UNARY, 2: _BINARY, 3: _TERNARY}.get(len(self._args), ())
        if name not in known:
            return None
        if name in _BINARY:
            return self._binary(name)
        if name in _TERNARY:
            return self._ternary(name)
        return None if self._kwargs else (self._args, {})

    def _binary(self, name: str) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        first, second = self._args
        alpha = self._kwargs.pop("alpha", 1)
        if self._kwargs or not (_is_tensor(second) or _is_number(second)):
            return None
        if _is_tensor(second) and not self._are_columns([second]):
            second = Repeated(second)
        if type(alpha) in (int, float) and alpha == 1:
            return (first, second), {}
        if _is_number(second) or not _is_number(alpha) or alpha in self._columns:
            return None
        return (first, second), {"alpha": alpha}

    def _ternary(self, name: str) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if name == "lerp":
            weight = self._args[2]
            known = self._are_columns([weight]) or (
                _is_number(weight) and weight not in self._columns
            )
            fits = known and self._are_columns(self._args[1:2]) and not self._kwargs
            return (self._args, {}) if fits else None
        value = self._kwargs.pop("value", 1)
        fits = self._are_columns(self._args) and _is_number(value) and not self._kwargs
        return ((*self._args, value), {}) if fits else None

    def _are_columns(self, values: Iterable[Any]) -> bool:
        """True for tensors of which each row has its own."""
        return all(_is_tensor(value) and value in self._columns for value in values)


def _is_tensor(value: Any) -> TypeGuard[fx.Node]:
    return isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)


def _is_number(value: Any) -> bool:
    if isinstance(value, fx.Node):
        return isinstance(value.meta.get("val"), (int, float, torch.SymInt, torch.SymFloat))
    return type(value) in (int, float)


# --- trying out -----------------------------------------------------------------------------------

_ROWS, _ELEMENTS = 2, 67
"""More elements than the widest vector register holds, and a part of one."""


def _agree(node: fx.Node, over: OverLists, columns: Container[fx.Node]) -> bool:
    """True when both calls give the same bits, of two rows of values like those of the call."""
    operation: Any = node.target
    with neutral(), below_autograd():
        rows = []
        for row in range(_ROWS):
            inputs = enumerate(node.all_input_nodes)
            rows.append({one: _sample(one, n + row * (one in columns)) for n, one in inputs})

        def listed(argument: Any) -> Any:
            if isinstance(argument, Repeated):
                return [row[argument.tensor] for row in rows]
            if not isinstance(argument, fx.Node):
                return argument
            if argument not in columns:
                return rows[0][argument]
            return [_copied(row[argument]) for row in rows]

        args = [listed(argument) for argument in over.args]
        keywords = {key: listed(value) for key, value in over.keywords.items()}
        single = [
            operation(
                *fx.map_arg(node.args, row.__getitem__), **fx.map_arg(node.kwargs, row.__getitem__)
            )
            for row in rows
        ]
        try:
            found = over.function(*args, **keywords)
        except (RuntimeError, TypeError):  # no such list of numbers, no such dtype
            return False
        return all(map(same, single, found if over.written is None else args[0]))


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _sample(node: fx.Node, number: int) -> Any:
    """A value like that of a node, another one for each number."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        return number + 2 if isinstance(value, (int, torch.SymInt)) else 0.37 + number / 7
    shape = (_ELEMENTS,) if value.ndim else ()
    count = torch.arange(1, 1 + math.prod(shape), dtype=torch.float64).reshape(shape)
    return ((count * (number + 1)).sin().abs() + 0.1).to(value.dtype)
