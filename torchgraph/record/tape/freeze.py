"""Symbolic numbers that outlive their step, frozen to plain values.

torch's C++ would go on to take them for symbols, and compute nonsense.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

from .node import Node

_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
_OWN = {"__class__", "__new__", "__init_subclass__", "__subclasshook__", "__getattribute__"}
_OWN |= {"__doc__", "__getnewargs__"}


class _Frozen:
    node: Node

    def __reduce_ex__(self, protocol: object) -> tuple[type, tuple[object]]:
        return type(self.node.value), (self.node.value,)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> object:
        numpy: Any = sys.modules["numpy"]  # which calls this
        return numpy.asarray(self.node.value, dtype=dtype)


def _like(kind: type) -> type[_Frozen]:
    """A class with the methods of ``kind``, applied to the number's value."""
    made: dict[str, Any] = {"__class__": property(lambda self: kind)}
    for name in sorted(set(dir(kind)) - _OWN):
        own = getattr(kind, name)
        if not hasattr(object, name) or own is not getattr(object, name):
            made[name] = _method(name) if callable(own) else _attribute(name)
    made.update({"__divmod__": _operation(divmod), "__rdivmod__": _operation(divmod, swapped=True)})
    for name in dir(operator):
        swapped = f"__r{name[2:]}"
        if name in made and swapped in made:
            made[name] = _operation(getattr(operator, name))
            made[swapped] = _operation(getattr(operator, name), swapped=True)
    made.update((f"__{name}__", _operation(getattr(operator, name))) for name in _COMPARED)
    return type(f"Settled{kind.__name__}", (_Frozen,), made)


def _operation(function: Callable[..., object], *, swapped: bool = False) -> Callable[..., object]:
    """An operator that also works with operands that only know numbers, as tensors do."""

    def method(self: _Frozen, other: object, *rest: object) -> object:
        own, other = self.node.value, _plain(other)
        return function(other, own) if swapped else function(own, other, *rest)

    return method


def _method(name: str) -> Callable[..., object]:
    def method(self: _Frozen, *args: object, **named: object) -> object:
        return getattr(self.node.value, name)(*map(_plain, args), **named)

    return method


def _attribute(name: str) -> property:
    return property(lambda self: getattr(self.node.value, name))


def _plain(value: Any) -> Any:
    return value.node.value if type(value) in (_FLOAT, _INT) else value


_FLOAT, _INT = _like(float), _like(int)


def freeze(number: Any) -> None:
    """Turn ``number`` into an object that computes as a plain number does."""
    kind = _INT if number.node.is_int() else _FLOAT
    vars(object)["__class__"].__set__(number, kind)  # its ``__class__`` is that of the plain number
