"""The node of a symbolic number: its value, its place on the tape, and the writer."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from .tape import Args, Ref


class Writer(Protocol):
    """A recorder of arithmetic on symbolic numbers."""

    def computed(self, target: Callable[..., object], args: Args, value: object) -> Ref:
        """The value of ``target(*args)``; a `Ref` for each number among ``args``."""

    def branched(self, number: Ref, value: object) -> None:
        """Record a branch: Python went on with ``value``, which may differ in another step."""


class Node:
    """The SymNode interface of torch's C++, over a concrete value on the tape."""

    def __init__(self, value: Any, ref: Ref, writer: Writer) -> None:
        self.value, self.ref = value, ref
        self._writer = weakref.ref(writer)
        self.hint = value
        self.constant = None

    @property
    def writer(self) -> Writer:
        """The recorder while it records: caches of torch, as DTensor's, keep numbers for good."""
        return self._writer() or NOBODY

    def has_hint(self) -> bool:
        return True

    def is_symbolic(self) -> bool:
        return True

    def is_int(self) -> bool:
        return isinstance(self.value, int) and not self.is_bool()

    def is_float(self) -> bool:
        return not isinstance(self.value, int)

    def is_bool(self) -> bool:
        return isinstance(self.value, bool)

    def maybe_as_int(self) -> None:
        return None

    maybe_as_float = maybe_as_bool = nested_int = maybe_as_int

    def is_constant(self) -> bool:
        return False

    is_nested_int = is_constant

    def guard_float(self, file: str = "", line: int = 0) -> float:
        return float(self.exact())

    def guard_int(self, file: str = "", line: int = 0) -> int:
        return int(self.exact())

    def exact(self) -> Any:
        """The plain value, with a branch that pins the program to it."""
        self.writer.branched(self.ref, self.value)
        return self.value

    def wrap_int(self, value: float) -> Node:
        """The node of a constant operand: C++ mixes it with symbolic bounds."""
        return known(value)

    wrap_float = wrap_int

    def __getattr__(self, name: str) -> Callable[..., Node]:
        function = _SIZES.get(name)
        if function is None:
            raise AttributeError(name)

        def method(*others: object) -> Node:
            if self.is_float() and name in _FACTORS:
                return self._computed(function, others)
            asked = [one for one in (self, *others) if isinstance(one, Node)]
            # Whether two floats are equal, only a cache asks, such as DTensor's of calls it knows.
            looked_up = name == "eq" and len(asked) == 2 and all(one.is_float() for one in asked)
            get = operator.attrgetter("value") if looked_up else Node.exact
            values = [get(one) if isinstance(one, Node) else one for one in (self, *others)]
            return known(function(*values))

        return method

    def _computed(self, function: Callable[..., object], others: tuple[object, ...]) -> Node:
        """The value of a C++ computation on the number, such as in a backward formula."""
        sides = [one if isinstance(one, Node) else known(float(one)) for one in others]  # type: ignore[arg-type]
        value = function(self.value, *(one.value for one in sides))
        writer = next((one.writer for one in (self, *sides) if one.writer is not NOBODY), NOBODY)
        refs = (one.value if one.writer is NOBODY else one.ref for one in (self, *sides))
        return Node(value, writer.computed(function, tuple(refs), value), writer)

    def guard_bool(self, file: str = "", line: int = 0) -> bool:
        return bool(self.exact())

    expect_true = expect_size = guard_size_oblivious = guard_bool
    guard_or_false = guard_or_true = statically_known_true = guard_bool

    def _graph_repr(self) -> str:
        return repr(self.value)

    __repr__ = __str__ = _graph_repr


_SIZES: dict[str, Callable[..., object]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "mod", "neg", "floordiv")},
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "int_floordiv": operator.floordiv,
    "sym_max": max,
    "sym_min": min,
    "clone": lambda value: value,
    "sym_and": operator.and_,
    "sym_or": operator.or_,
    "sym_not": operator.not_,
}
"""Computations of C++ on sizes, strides and bounds."""
_FACTORS = frozenset({"add", "sub", "mul", "neg"})
"""Computations of C++ on factors, in Python floats."""


class _Nobody:
    """A writer that records nothing, for numbers that are constants."""

    def computed(self, target: Callable[..., object], args: Args, value: object) -> Ref:
        return Ref(-1)

    def branched(self, number: Ref, value: object) -> None:
        pass


NOBODY = _Nobody()


def known(value: Any) -> Node:
    """The node of a constant."""
    return Node(value, Ref(-1), NOBODY)
