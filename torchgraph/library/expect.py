"""Predicates: a step that goes on by what Python has seen must see the same again.

They compute nothing. A program that meets another value than the one it was recorded with raises
`ValueMoved`, and lowering lets it write nothing of the user's until its last predicate has held.
On a GPU a comparison may be an op of its own, so that the host waits once for several.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from .._torch import OpOverload
from ..errors import SourceLine
from .definition import define

_SHOWN_ELEMENTS = 8


class ValueMoved(Exception):
    """The program was recorded with another value: it cannot serve the call. Nothing was written.

    No error of the user's: whoever runs programs meets it and takes another variant. The ops below
    raise it with the two values in words; `Replay` raises it with the place.
    """

    def __init__(self, expected: str, found: str, *, other: str = "") -> None:
        """``other``: what an op raised instead, on values that the program was not made for."""
        super().__init__(other or f"expected {expected}, found {found}")
        self.expected = expected
        self.found = found
        self.node: fx.Node | None = None
        """The predicate, or the op that could not go on, in the lowered program."""
        self.line: SourceLine | None = None
        """The user's line that read the value."""


def same(value: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal shape, dtype and bits, wherever they are; any NaN equals any NaN."""
    if value.dtype is not expected.dtype or value.shape != expected.shape:
        return False
    if value.numel() == 1:
        return _same_number(value.item(), expected.item())
    return bool(equal_bits(value.to(expected.device), expected))


def equal_bits(value: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """A bool without dimensions, of tensors of one shape, dtype and device; waits for nothing."""
    if value.is_complex():
        value, expected = map(torch.view_as_real, (value.resolve_conj(), expected.resolve_conj()))
    if not value.is_floating_point():
        return (value == expected).all()
    if value.itemsize == 1:  # float8 has next to no ops; each fits into a float
        value, expected = value.float(), expected.float()
    equal = (value == expected) & (value.signbit() == expected.signbit())
    return (equal | (value.isnan() & expected.isnan())).all()


def _same_number(left: object, right: Any) -> bool:
    if isinstance(left, complex):
        return _same_number(left.real, right.real) and _same_number(left.imag, right.imag)
    if left == right:
        return bool(left) or not isinstance(left, float) or _sign(left) == _sign(right)
    return bool(left != left and right != right)


def _sign(number: float) -> float:
    return math.copysign(1.0, number)


def words(tensor: torch.Tensor) -> str:
    """``True``, ``[1, 2]``, or dtype and shape of what is too much to show."""
    if tensor.numel() <= _SHOWN_ELEMENTS and tensor.device.type != "meta":
        return repr(tensor.tolist())
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _compare(value: torch.Tensor, expected: torch.Tensor) -> None:
    if same(value, expected):
        return
    left, right = words(expected), words(value)
    if value.dtype is not expected.dtype or value.shape != expected.shape:
        left, right = (
            f"{text} as {str(t.dtype).removeprefix('torch.')}{list(t.shape)}"
            for text, t in ((left, expected), (right, value))
        )
    elif left == right:
        right = "other values"
    raise ValueMoved(left, right)


def _compare_shape(value: torch.Tensor, shape: list[int]) -> None:
    if tuple(value.shape) != tuple(shape):
        raise ValueMoved(f"the shape {list(shape)}", f"{list(value.shape)}")


def _differs(value: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    if value.dtype is not expected.dtype or value.shape != expected.shape:
        return torch.ones((), dtype=torch.bool, device=value.device)
    return equal_bits(value, expected.to(value.device)).logical_not()


def _one_flag(value: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return torch.empty((), dtype=torch.bool, device=value.device)


def _compare_none(flags: list[torch.Tensor]) -> None:
    hits = torch.stack(flags).tolist()
    if True in hits:
        raise ValueMoved("what Python has read", f"another value, number {hits.index(True)}")


def _nothing(*_: object) -> None:
    """Do nothing: fake tensors have no values to compare."""


expect = define("expect(Tensor value, Tensor expected) -> ()", _compare, _nothing, compiled=False)
"""Raises `ValueMoved` unless ``value`` is ``expected``, to the bit; any NaN equals any NaN."""

expect_shape = define(
    "expect_shape(Tensor value, SymInt[] shape) -> ()", _compare_shape, _nothing, compiled=False
)
"""Raises `ValueMoved` unless ``value`` has that shape: behind ops whose size depends on data."""

differs = define(
    "differs(Tensor value, Tensor expected) -> Tensor", _differs, _one_flag, compiled=False
)
"""A bool without dimensions on the device of ``value``: False where `expect` would hold."""

expect_none = define("expect_none(Tensor[] flags) -> ()", _compare_none, _nothing, compiled=False)
"""Raises `ValueMoved` if one of the bools is True, after a wait for their device."""

KERNELS: dict[OpOverload, Callable[..., object]] = {expect: _compare, expect_shape: _compare_shape}
"""Functions for lowered programs: the dispatcher takes longer than the comparison."""

for _op in (*KERNELS, expect_none):
    fx.node.has_side_effect(_op)  # the dead code elimination of make_fx asks fx, not us
