"""Symbolic numbers, which vary between steps: learning rates, step counts, and results of them.

While an optimizer's own ``step()`` runs, each number of its param groups and state is a `Number`:
arithmetic is computed and recorded, a comparison gives a plain bool and is recorded as a branch,
and a use of the bare value (``float()``, an index, ``torch.tensor``) makes the value a branch.
torch's C++ takes them for SymFloats and SymInts and passes them on to the dispatch mode.
"""

from __future__ import annotations

import math
import operator
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Real
from typing import Any
from weakref import ref

import torch

from ..._torch import OpOverload, schema_of
from ..._torch.symbolic import symbolic_function
from .node import Node, Writer, known
from .tape import Args, Kwargs, Ref

_SYMBOLIC = (torch.SymFloat, torch.SymInt)


def node_of(number: object) -> Node | None:
    """The node of a symbolic number, also inside a class of torch's C++; None for others."""
    if issubclass(type(number), _SYMBOLIC):  # by the type alone, as `is_a`
        node = vars(number).get("node")
        return node if isinstance(node, Node) else None
    return None


_followed: ContextVar[list[ref[Number | Integer]] | None] = ContextVar("_followed", default=None)


@contextmanager
def followed(made: list[ref[Number | Integer]]) -> Iterator[None]:
    """Collect weak references to the numbers that this thread makes into ``made``."""
    token = _followed.set(made)
    try:
        yield
    finally:
        _followed.reset(token)


def make(value: object, at: Ref, writer: Writer) -> Number | Integer:
    """The symbolic number for ``value``, an int or a float (or NumPy's)."""
    return again(Node(value, at, writer))


def kept(node: Node) -> Number | Integer:
    """A symbolic number of ``node`` that the recording itself holds."""
    return (Integer if isinstance(node.value, int) else Number)(node)


def again(node: Node) -> Number | Integer:
    """Another symbolic number of ``node``."""
    number = kept(node)
    made = _followed.get()
    if made is not None:
        made.append(ref(number))
    return number


def bare(value: Any) -> Any:
    """``value`` with plain numbers for symbolic ones."""
    node = node_of(value)
    if node is not None:
        return node.value
    if type(value) in (list, tuple, torch.Size):
        return type(value)(map(bare, value))
    if type(value) is dict:
        return {key: bare(item) for key, item in value.items()}
    return value


def bare_args(args: Args) -> Args:
    """The arguments of an op with plain numbers; the same tuple where none is symbolic.

    Ops take Python's numbers, not NumPy's.
    """
    return args if not any(map(_moves, args)) else tuple(map(_argument, args))


def bare_kwargs(kwargs: Kwargs) -> Kwargs:
    """Keyword arguments with plain numbers for symbolic ones."""
    if not any(map(_moves, kwargs.values())):
        return kwargs
    return {key: _argument(item) for key, item in kwargs.items()}


def exact_sizes(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments of an op, with plain sizes, dimensions and bounds."""
    if not (any(map(_counts, args)) or any(map(_counts, kwargs.values()))):
        return args, kwargs
    sizes = {a.name: "int" in str(a.type) for a in schema_of(op).arguments}
    return (
        tuple(exact(arg) if size else arg for arg, size in zip(args, sizes.values(), strict=False)),
        {name: exact(arg) if sizes.get(name) else arg for name, arg in kwargs.items()},
    )


def _counts(value: Any) -> bool:
    kind = type(value)
    return kind in (Integer, torch.SymInt) or (kind in (list, tuple) and any(map(_counts, value)))


def written(
    node: Node,
    target: Callable[..., Any],
    args: Args,
    function: Callable[..., Any] | None = None,
) -> Any:
    """The recorded result of a function of numbers, some of them symbolic.

    Args:
        node: that of one of them.
        target: the function on the tape; ``function``, where given, computes the value.
    """
    function = function or target
    try:
        value = function(*map(bare, args))
    except Exception:  # any error: the user's lines may catch it
        exact(args)
        raise
    # Complex numbers and tuples: the program holds for these values.
    if not isinstance(value, (int, float, Real)):
        return function(*map(exact, args))
    at = node.writer.computed(target, tuple(map(_on_tape, args)), value)
    if isinstance(value, bool):
        node.writer.branched(at, value)
        return value
    return make(value, at, node.writer)


def _on_tape(value: Any) -> Any:
    if type(value) is list:
        return list(map(_on_tape, value))
    node = node_of(value)
    return value if node is None else node.ref


def exact(value: Any) -> Any:
    """``value`` with plain numbers, each pinned by a branch."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(exact, value))
    node = node_of(value)
    return value if node is None else node.exact()


def _argument(value: object) -> object:
    if type(value) is list:
        return list(map(_argument, value))
    node = node_of(value)
    if node is None:
        return value
    return node.value if type(node.value) in (int, float) else node.value.item()


def _moves(value: object) -> bool:
    if isinstance(value, torch.Tensor):  # nearly always
        return False
    if type(value) is list:
        return any(map(_moves, value))
    return node_of(value) is not None


def _binary(
    function: Callable[..., Any],
    done: Callable[..., Any] | None = None,
    *,
    swapped: bool = False,
) -> Callable[..., object]:
    def method(self: _Arithmetic, other: object) -> object:
        if type(other) is complex:  # never symbolic: the program holds for this value
            own = self.node.exact()
            return function(other, own) if swapped else function(own, other)
        if not isinstance(other, (int, float)) and node_of(other) is None:
            return NotImplemented
        return written(self.node, function, (other, self) if swapped else (self, other), done)

    return method


def _comparison(function: Callable[..., object]) -> Callable[..., object]:
    return _binary(function, lambda left, right: bool(function(left, right)))  # NumPy's is none


def _unary(
    target: Callable[..., object], function: Callable[..., object] | None = None
) -> Callable[..., object]:
    def method(self: _Arithmetic, *rest: object) -> object:
        return written(self.node, target, (self, *rest), function)

    return method


def _promoted(extreme: Callable[..., float]) -> Callable[..., float]:
    """``max`` or ``min`` with torch's promotion of symbolic numbers: one float makes a float."""

    def function(left: object, right: object) -> float:
        found = extreme(left, right)
        return float(found) if isinstance(left, float) or isinstance(right, float) else found

    return function


def _plain(function: Callable[..., object], *, swapped: bool = False) -> Callable[..., object]:
    """A method on the plain value."""

    def method(self: _Arithmetic, *rest: object, **named: object) -> object:
        own = self.node.exact()
        return function(*rest, own) if swapped else function(own, *rest, **named)

    return method


class _Arithmetic:
    """The operators of both kinds of symbolic numbers, set below."""

    node: Node
    __sym_float__: Callable[..., object]
    __sym_sqrt__: Callable[..., object]

    def __bool__(self) -> bool:
        return bool(operator.ne(self, 0))

    def __hash__(self) -> int:
        if sys._getframe(1).f_code is random.Random.seed.__code__:
            # What is no int to C is a seed by its hash, which is another one.
            raise TypeError("a generator is seeded with a number that moves")
        return hash(self.node.exact())

    def __deepcopy__(self, memo: object) -> _Arithmetic:
        return self

    def __copy__(self) -> _Arithmetic:
        return self

    def __divmod__(self, other: Any) -> tuple[object, object]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[object, object]:
        return other // self, other % self

    def __reduce_ex__(self, protocol: object) -> tuple[type, tuple[object]]:
        if _followed.get() is None or getattr(self.node.writer, "follows", False):
            # In the user's own lines: no pickle of it is that of an int.
            raise TypeError("a number that moves is pickled")
        value = self.node.exact()
        return type(value), (value,)

    @property
    def item(self) -> Callable[[], object]:
        """``item()`` as of a NumPy number; Python's have none."""
        if type(self.node.value) in (int, float):
            raise AttributeError("item")
        return self.node.exact

    @property
    def real(self) -> _Arithmetic:
        return self

    @property
    def imag(self) -> float:
        return 0 if self.node.is_int() else 0.0

    def __array__(self, dtype: object = None, copy: bool | None = None) -> object:
        numpy: Any = sys.modules["numpy"]  # which calls this
        return numpy.asarray(self.node.exact(), dtype=dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: object, **named: object) -> object:
        """NumPy computes with the bare value: a Python number is weaker than an array's dtype."""
        return getattr(ufunc, method)(*map(exact, inputs), **named)

    def __round__(self, *digits: Any) -> object:
        return written(self.node, round, (self, *map(exact, digits)))


_BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
    *("and", "or", "xor", "lshift", "rshift"),
)
_UNARY: dict[str, Callable[..., object]] = {
    **{name: getattr(operator, name) for name in ("neg", "abs", "pos")},
    **{name: getattr(math, name) for name in ("trunc", "floor", "ceil")},
}
_PLAIN: dict[str, Callable[..., object]] = {
    "__float__": float,
    "__int__": int,
    "__complex__": complex,
    "__repr__": repr,
    "__str__": str,
    "__format__": format,
}


def _fill() -> None:
    for name in _BINARY:
        function = getattr(operator, f"__{name}__")
        setattr(_Arithmetic, f"__{name}__", _binary(function))
        setattr(_Arithmetic, f"__r{name}__", _binary(function, swapped=True))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(_Arithmetic, f"__{name}__", _comparison(getattr(operator, name)))
    for name, function in _PLAIN.items():
        setattr(_Arithmetic, name, _plain(function))
    for name, function in _UNARY.items():
        setattr(_Arithmetic, f"__{name}__", _unary(function))
    for name, target, extreme in (("max", torch.sym_max, max), ("min", torch.sym_min, min)):
        setattr(_Arithmetic, f"__sym_{name}__", _unary(target, _promoted(extreme)))
    _Arithmetic.__sym_float__ = _unary(torch.sym_float, float)
    _Arithmetic.__sym_sqrt__ = _unary(torch.sym_sqrt, math.sqrt)
    for name in ("exp", "cos", "sin", "tanh", "log2"):
        symbolic = symbolic_function(name)
        if symbolic is not None:
            setattr(_Arithmetic, f"__sym_{name}__", _unary(symbolic, getattr(math, name)))


def _named(name: str) -> Callable[..., object]:
    """The method of this name of Python's number class."""
    return _plain(lambda value, *rest, **named: getattr(value, name)(*rest, **named))


def _complete(cls: type, kind: type) -> None:
    """Add the other methods of ``kind``, Python's own class."""
    known = {*dir(object), *vars(_Arithmetic), *vars(cls)}
    for name in set(dir(kind)) - known:
        setattr(cls, name, _named(name))


_fill()


class Number(_Arithmetic, torch.SymFloat):
    """A symbolic float. To ``isinstance`` it is a float, as optimizers ask."""

    @property  # type: ignore[misc]  # the class of the plain number
    def __class__(self) -> type:
        return float

    def is_integer(self) -> bool:
        """A branch on the answer, and not on the number."""
        return bool(operator.mod(self, 1) == 0)


class Integer(_Arithmetic, torch.SymInt):
    """A symbolic int."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def __index__(self) -> int:
        return int(self.node.exact())

    def __invert__(self) -> object:
        return -self - 1

    @property
    def numerator(self) -> Integer:
        return self

    @property
    def denominator(self) -> int:
        return 1


_complete(Number, float)
_complete(Integer, int)


def stand_in(value: float) -> Number | Integer:
    """A constant symbolic number, for computing among fake values."""
    return again(known(value))
