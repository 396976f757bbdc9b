"""Numbers that move between steps: learning rates, step counts, what is computed from them.

While an optimizer's own ``step()`` runs, each number of its param groups and state is a `Number`:
arithmetic is done and written down, a comparison gives a plain bool and is written down as a
branch, and whatever needs the bare value (``float()``, an index, ``torch.tensor``) makes the value
a branch. torch's C++ takes them for symbolic numbers and hands them on to the listener untouched.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch

from ..._torch import OpOverload, schema_of
from ..._torch.symbolic import symbolic_function
from .tape import Args, Kwargs, Ref


class Writer(Protocol):
    """Where arithmetic is written down."""

    def computed(self, target: Callable[..., object], args: Args, value: object) -> Ref:
        """The value of ``target(*args)``; a `Ref` for each number among ``args``."""

    def branched(self, number: Ref, value: object) -> None:
        """Python went on with ``value``: in another step it may be another one."""


class _Node:
    """What torch's C++ asks about a symbolic number."""

    def __init__(self, value: Any, ref: Ref, writer: Writer) -> None:
        self.value, self.ref, self.writer = value, ref, writer
        self.hint = value
        self.constant = None

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
        """The bare value, which the program then holds for alone."""
        self.writer.branched(self.ref, self.value)
        return self.value

    def wrap_int(self, value: int) -> _Node:
        """Beside a bound that moves, C++ computes with symbols: what it does goes by the value."""
        return _Node(value, Ref(-1), _NOBODY)

    def __getattr__(self, name: str) -> Callable[..., _Node]:
        function = _SIZES.get(name)
        if function is None:
            raise AttributeError(name)

        def method(*others: object) -> _Node:
            known = [one.exact() if isinstance(one, _Node) else one for one in (self, *others)]
            return _Node(function(*known), Ref(-1), _NOBODY)

        return method

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
}
"""What C++ computes of sizes, strides and bounds."""


def node_of(number: object) -> _Node | None:
    """The node of a number that moves, also when torch's C++ has put it into a class of its own."""
    if isinstance(number, (torch.SymFloat, torch.SymInt)):
        node = vars(number).get("node")
        return node if isinstance(node, _Node) else None
    return None


def make(value: object, ref: Ref, writer: Writer) -> Number | Integer:
    """The moving number for ``value``, an int or a float (or NumPy's)."""
    return (Integer if isinstance(value, int) else Number)(_Node(value, ref, writer))


def bare(value: Any) -> Any:
    """``value`` with the numbers in it replaced by what they are."""
    node = node_of(value)
    if node is not None:
        return node.value
    if type(value) in (list, tuple):
        return type(value)(map(bare, value))
    if type(value) is dict:
        return {key: bare(item) for key, item in value.items()}
    return value


def bare_args(args: Args) -> Args:
    """The arguments of an op with plain numbers; the same tuple where none moves, as mostly.

    Ops take Python's numbers, not NumPy's.
    """
    return args if not any(map(_moves, args)) else tuple(map(_argument, args))


def bare_kwargs(kwargs: Kwargs) -> Kwargs:
    """The same of keyword arguments."""
    if not any(map(_moves, kwargs.values())):
        return kwargs
    return {key: _argument(item) for key, item in kwargs.items()}


def exact_sizes(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments of an op, in which no size, dimension or bound moves."""
    if not (any(map(_counts, args)) or any(map(_counts, kwargs.values()))):
        return args, kwargs
    sizes = {a.name: "int" in str(a.type) for a in schema_of(op).arguments}
    return (
        tuple(
            _exact(arg) if size else arg for arg, size in zip(args, sizes.values(), strict=False)
        ),
        {name: _exact(arg) if sizes.get(name) else arg for name, arg in kwargs.items()},
    )


def _counts(value: Any) -> bool:
    kind = type(value)
    return kind in (Integer, torch.SymInt) or (kind in (list, tuple) and any(map(_counts, value)))


def _exact(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return type(value)(map(_exact, value))
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


def _operand(value: object) -> tuple[object, object]:
    """(what stands on the tape, the bare value)."""
    node = node_of(value)
    return (value, value) if node is None else (node.ref, node.value)


def _arithmetic(function: Callable[..., object], *, swapped: bool = False) -> Callable[..., object]:
    def method(self: _Arithmetic, other: object) -> object:
        if type(other) is complex:  # none that moves is known: the program holds for this value
            own = self.node.exact()
            return function(other, own) if swapped else function(own, other)
        if not isinstance(other, (int, float)) and node_of(other) is None:
            return NotImplemented
        sides = [_operand(self), _operand(other)]
        (left, a), (right, b) = reversed(sides) if swapped else sides
        return _made(self.node.writer, function, (left, right), function(a, b))

    return method


def _comparison(function: Callable[..., object]) -> Callable[..., object]:
    def method(self: _Arithmetic, other: object) -> object:
        if not isinstance(other, (int, float)) and node_of(other) is None:
            return NotImplemented
        (left, a), (right, b) = _operand(self), _operand(other)
        outcome = bool(function(a, b))
        writer = self.node.writer
        writer.branched(writer.computed(function, (left, right), outcome), outcome)
        return outcome

    return method


def _unary(target: Callable[..., object], function: Callable[..., object]) -> Callable[..., object]:
    def method(self: _Arithmetic, *rest: object) -> object:
        ref, value = _operand(self)
        others = [_operand(one) for one in rest]
        args = (ref, *(one for one, _ in others))
        return _made(self.node.writer, target, args, function(value, *(b for _, b in others)))

    return method


def _made(
    writer: Writer, target: Callable[..., object], args: Args, value: object
) -> complex | Number | Integer:
    if isinstance(value, complex):  # of a negative number's root: as Python has it
        return value
    return make(value, writer.computed(target, args, value), writer)


def _promoted(extreme: Callable[..., float]) -> Callable[..., float]:
    """``max`` or ``min`` as torch has it for symbolic numbers: one float makes a float of it."""

    def function(left: object, right: object) -> float:
        found = extreme(left, right)
        return float(found) if isinstance(left, float) or isinstance(right, float) else found

    return function


def _plain(function: Callable[..., object]) -> Callable[..., object]:
    """A method that needs the bare value."""

    def method(self: _Arithmetic, *rest: object) -> object:
        return function(self.node.exact(), *rest)

    return method


def _root(value: float) -> float:
    return math.sqrt(value)


class _Arithmetic:
    """What both kinds have in common; the operators are set below."""

    node: _Node
    __sym_float__: Callable[..., object]

    def __bool__(self) -> bool:
        writer, value = self.node.writer, bool(self.node.value)
        writer.branched(writer.computed(operator.ne, (self.node.ref, 0), value), value)
        return value

    def __deepcopy__(self, memo: object) -> _Arithmetic:
        return self

    def __copy__(self) -> _Arithmetic:
        return self

    def __array__(self, dtype: object = None, copy: bool | None = None) -> object:
        numpy: Any = sys.modules["numpy"]  # which calls this
        return numpy.asarray(self.node.exact(), dtype=dtype)

    def __sym_sqrt__(self) -> object:
        return _unary(torch.sym_sqrt, _root)(self)


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_PLAIN: dict[str, Callable[..., object]] = {
    "__float__": float,
    "__int__": int,
    "__complex__": complex,
    "__hash__": hash,
    "__repr__": repr,
    "__str__": str,
    "__format__": format,
    "__round__": round,
    "__trunc__": math.trunc,
    "__floor__": math.floor,
    "__ceil__": math.ceil,
    "__reduce__": lambda value: value.__reduce__(),
    "__divmod__": divmod,
    "is_integer": lambda value: float(value).is_integer(),
    "item": lambda value: value,
}


def _fill() -> None:
    for name in _BINARY:
        function = getattr(operator, name)
        setattr(_Arithmetic, f"__{name}__", _arithmetic(function))
        setattr(_Arithmetic, f"__r{name}__", _arithmetic(function, swapped=True))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(_Arithmetic, f"__{name}__", _comparison(getattr(operator, name)))
    for name, function in _PLAIN.items():
        setattr(_Arithmetic, name, _plain(function))
    for name in ("neg", "abs", "pos"):
        function = getattr(operator, name)
        setattr(_Arithmetic, f"__{name}__", _unary(function, function))
    for name, target, extreme in (("max", torch.sym_max, max), ("min", torch.sym_min, min)):
        setattr(_Arithmetic, f"__sym_{name}__", _unary(target, _promoted(extreme)))
    _Arithmetic.__sym_float__ = _unary(torch.sym_float, float)
    for name in ("exp", "cos", "sin", "tanh", "log2"):
        symbolic = symbolic_function(name)
        if symbolic is not None:
            setattr(_Arithmetic, f"__sym_{name}__", _unary(symbolic, getattr(math, name)))


_fill()


class Number(_Arithmetic, torch.SymFloat):
    """A float that moves. To ``isinstance`` it is a float: optimizers ask."""

    @property  # type: ignore[misc]  # not its class, but what it stands for
    def __class__(self) -> type:
        return float


class Integer(_Arithmetic, torch.SymInt):
    """An int that moves."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def __index__(self) -> int:
        return int(self.node.exact())


class _Nobody:
    """A writer for numbers that are known for good."""

    def computed(self, target: Callable[..., object], args: Args, value: object) -> Ref:
        return Ref(-1)

    def branched(self, number: Ref, value: object) -> None:
        pass


_NOBODY = _Nobody()


def stand_in(value: float) -> Number | Integer:
    """What stands for a number of known value among fake values: it can be computed with."""
    return make(value, Ref(-1), _NOBODY)
