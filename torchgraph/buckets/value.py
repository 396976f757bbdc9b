"""Facts about values of the padded program, and the op that a rule is asked about.

A rule is asked about one op, in the program of the call as it is and in that of the padded call. It
may count on this of every argument, and must hold it for the result: *the corner of the padded
value is the real value*. Where it does not hold, the rule raises `Refused`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from .._torch.ops import schema_if_any, schema_of
from ..ir.nodes import op_of
from . import dims
from .dims import Dims, Factors, Pair


class Padding(enum.Enum):
    """The contents of a padded value outside of its real corner."""

    COPY = "copy"  # what the last real row holds
    FINITE = "finite"  # values of its own: not finite only where real rows, or tables, are not
    ZERO = "zero"  # zeros, or False
    TRUE = "true"  # True
    NULL = "null"  # as the corner: zeros everywhere
    ORDER = "order"  # of arange: its own position everywhere
    ANY = "any"


@dataclass(frozen=True)
class PaddedTensor:
    """A tensor: its dimensions, and what is outside of the corner of real entries.

    Of one that has no padding: NULL, FINITE for a table, or COPY, whatever it was given.
    """

    dims: Dims
    padding: Padding = Padding.COPY

    def __post_init__(self) -> None:
        if self.whole and self.padding not in (Padding.NULL, Padding.FINITE):
            object.__setattr__(self, "padding", Padding.COPY)

    @property
    def padded(self) -> frozenset[int]:
        """The dimensions that carry padding; none: both calls have the same value."""
        return dims.padded(self.dims)

    @property
    def whole(self) -> bool:
        """True when nothing of it is padding."""
        return not self.padded

    @property
    def copied(self) -> bool:
        """True when its padding is what any op may make of the last real entries."""
        return self.whole or self.padding in (Padding.COPY, Padding.NULL)

    @property
    def finite(self) -> bool:
        """True when its padding is finite where real entries and tables are."""
        return self.whole or self.padding is not Padding.ANY

    @property
    def unlike(self) -> Padding:
        """The padding of entries of it that are not those of the last real row."""
        if self.padding is Padding.NULL:
            return Padding.NULL
        finite = self.padding is Padding.FINITE if self.whole else self.finite
        return Padding.FINITE if finite else Padding.ANY


Known = PaddedTensor | tuple[PaddedTensor | None, ...] | None
"""What is known of what a node returns: its tensor, or its tensors; None for a number."""


class Refused(Exception):
    """The rule of an op cannot promise that real rows do not see padded ones."""


class Differs(Refused):
    """The size of the batch decides what runs: there is nothing to compare."""


def listed(value: Any) -> list[int]:
    """Dimensions that may be given as one or as several."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def names(text: str) -> frozenset[str]:
    """The names of ops in a text, which has spaces between them."""
    return frozenset(text.split())


@dataclass(frozen=True)
class Op:
    """One op in both programs, the real one and the padded one."""

    real: fx.Node
    padded: fx.Node
    known: Callable[[fx.Node], Known]
    """What is known of a node of the padded program."""

    @property
    def name(self) -> str:
        """``add`` for ``aten.add.Tensor``."""
        packet = getattr(self.padded.target, "overloadpacket", None)
        return getattr(packet or self.padded.target, "__name__", str(self.padded.target))

    @property
    def space(self) -> str:
        """``aten`` for ``aten.add.Tensor``."""
        return getattr(self.padded.target, "namespace", "")

    def arg(self, name: str, default: object = None) -> Any:
        """An argument of the padded call by its name in the schema."""
        return _argument(self.padded, name, default)

    def real_arg(self, name: str, default: object = None) -> object:
        """The argument of the op in the real program."""
        return _argument(self.real, name, default)

    def value(self, argument: Any) -> PaddedTensor:
        """The facts about a tensor argument."""
        found = self.known(argument)
        assert isinstance(found, PaddedTensor)
        return found

    def tensors(self) -> list[PaddedTensor]:
        """The facts about all tensor arguments, in order, with repetitions."""
        nodes: list[fx.Node] = []
        fx.node.map_arg((self.padded.args, self.padded.kwargs), nodes.append)
        return [one for node in nodes for one in flat(self.known(node))]

    def tensors_listed(self, name: str) -> list[PaddedTensor]:
        """The facts about each tensor in an argument that is a list of them."""
        return [self.value(one) for one in self.arg(name)]

    def literals(self, *free: str) -> None:
        """Refuse numbers that differ, besides the arguments of these names."""
        for name, real, padded in self._named():
            if name not in free and not _alike(real, padded):
                raise Refused(f"its {name!r} follows the size of the batch: {real} and {padded}")

    def _named(self) -> list[tuple[str, object, object]]:
        """(name, in the real call, in the padded call) of each argument."""
        schema = schema_if_any(self.padded.target)
        if schema is not None:
            names = [argument.name for argument in schema.arguments]
            return [(name, self.real_arg(name), self.arg(name)) for name in names]
        real, padded = ((n.args, sorted(n.kwargs.items())) for n in (self.real, self.padded))
        return [("arguments", real, padded)]

    def shapes(self) -> list[tuple[Pair, ...] | None]:
        """The sizes of each result in both calls; None for what is no tensor."""
        ours, theirs = (results(node.meta.get("val")) for node in (self.padded, self.real))
        if len(ours) != len(theirs):
            raise Refused(f"it gives {len(theirs)} parts, and {len(ours)} of the padded batch")
        return [_shape(real, padded) for real, padded in zip(theirs, ours, strict=True)]

    def shape(self) -> tuple[Pair, ...]:
        """The sizes of the one result."""
        (found,) = self.shapes()
        assert found is not None
        return found

    def give(self, values: Sequence[PaddedTensor | None]) -> Known:
        """``values`` in the structure that the op returns."""
        returned = self.padded.meta.get("val")
        return tuple(values) if isinstance(returned, (tuple, list)) else values[0]


PaddingRule = Callable[[Op], Known]


def flat(value: Known) -> list[PaddedTensor]:
    """The tensors in what is known of a node."""
    if isinstance(value, tuple):
        return [one for item in value for one in flat(item)]
    return [value] if isinstance(value, PaddedTensor) else []


def joined(values: Iterable[PaddedTensor]) -> Padding:
    """The padding of what is computed from ``values``, finite where they all are."""
    values = list(values)
    if all(value.copied for value in values):
        return Padding.COPY
    return Padding.FINITE if all(value.finite for value in values) else Padding.ANY


def results(value: object) -> list[object]:
    """The results of a node, as a list."""
    return list(value) if isinstance(value, (tuple, list)) else [value]


def checked(found: Sequence[Factors], shape: Sequence[Pair]) -> Dims:
    """``found``, if it has the sizes of ``shape``."""
    if tuple(map(dims.size, found)) != tuple(shape):
        raise Refused("its shape does not follow from that of its arguments")
    return tuple(found)


def _shape(real: object, padded: object) -> tuple[Pair, ...] | None:
    if not isinstance(padded, torch.Tensor):
        return None
    if not isinstance(real, torch.Tensor) or real.ndim != padded.ndim or real.dtype != padded.dtype:
        raise Differs("it gives something else for a batch of this size")
    if not all(type(size) is int for size in (*real.shape, *padded.shape)):
        raise Refused("how much it gives depends on the data")
    found = dims.pairs(real.shape, padded.shape)
    if any(one > other for one, other in found):
        raise Refused("it gives less for the padded batch")
    return found


def _argument(node: fx.Node, name: str, default: object) -> object:
    if name in node.kwargs:
        return node.kwargs[name]
    arguments = schema_of(op_of(node)).arguments
    for position, argument in enumerate(arguments):
        if argument.name == name:
            if position < len(node.args):
                return node.args[position]
            return argument.default_value if argument.has_default_value() else default
    return default


def _alike(real: object, padded: object) -> bool:
    """Equal literals; nodes are compared by who pairs the programs."""
    if isinstance(real, fx.Node) or isinstance(padded, fx.Node):
        return isinstance(real, fx.Node) and isinstance(padded, fx.Node)
    if isinstance(real, (list, tuple)) and isinstance(padded, (list, tuple)):
        return len(real) == len(padded) and all(map(_alike, real, padded))
    # As text: 1, 1.0 and True are equal, and not the same number; nan is the same as nan.
    return type(real) is type(padded) and repr(real) == repr(padded)
