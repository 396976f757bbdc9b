"""The functional forms of ops that write, what they are called with, and how their results lie."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import fx
from torch.fx.node import Argument, Target

from ..._torch import FakeTensorMode, OpOverload, schema_of
from ...ir import effects
from ...ir.nodes import op_of
from ...ir.values import evaluate, with_values

aten = torch.ops.aten
_OTHER_NAMES = {
    aten.bernoulli_.float: aten.bernoulli.p,
    aten.pow_.Scalar: aten.pow.Tensor_Scalar,
    aten.pow_.Tensor: aten.pow.Tensor_Tensor,
}
_PRODUCTS = frozenset({"addmm", "addmv", "addbmm", "baddbmm"})
"""They add up in an order that depends on where the result lies."""


def functional_op(op: Any) -> OpOverload | None:
    """``aten.add.Tensor`` for ``aten.add_.Tensor``, and so for our own ops."""
    return _OTHER_NAMES.get(op) or (effects.other_form(op) if schema_of(op).is_mutable else None)


def without_out(op: OpOverload) -> OpOverload | None:
    """``aten.maximum.default`` for ``aten.maximum.out``; None where there is no such op."""
    given = [(one.name, str(one.type)) for one in schema_of(op).arguments if not one.is_out]
    packet = op.overloadpacket
    for name in packet.overloads():
        other: OpOverload = getattr(packet, name)
        schema = schema_of(other)
        arguments = [(one.name, str(one.type)) for one in schema.arguments]
        if not schema.is_mutable and arguments == given:
            return other
    return None


def adds_up_by_layout(node: fx.Node) -> bool:
    """True for a product written into memory that no new tensor would lie in: other bits."""
    if name_of(node) not in _PRODUCTS or not is_mutable(node.target):
        return False
    outs = [node.kwargs.get("out"), *effects.written_values(node.target, node.args)]
    return any(isinstance(out, fx.Node) and not is_dense(out.meta["val"]) for out in outs)


def value_of(
    mode: FakeTensorMode, op: Target, args: tuple[Argument, ...], kwargs: dict[str, Argument]
) -> object:
    """The fake result of an op for the fake values of its arguments."""
    value = evaluate(mode, op, *with_values((args, kwargs)))
    if op is aten.uniform.default:  # its fake kernel keeps gaps
        with mode:
            return torch.empty_like(value)
    return value


def defaults(node: fx.Node, op: OpOverload) -> list[Any]:
    """Arguments that the in-place op has by default and the other needs: bernoulli's p."""
    mine, other = schema_of(op_of(node)).arguments, schema_of(op).arguments
    pairs = list(zip(mine, other, strict=False))[len(node.args) :]
    return [
        old.default_value
        for old, new in pairs
        if not new.kwarg_only and not new.has_default_value() and old.name not in node.kwargs
    ]


def is_mutable(target: object) -> TypeGuard[OpOverload]:
    """True for an op that writes an argument."""
    return isinstance(target, OpOverload) and bool(schema_of(target).is_mutable)


def name_of(node: object) -> str:
    """``add`` for a call of aten.add.Tensor or aten.add_.Tensor; empty for all but ATen's ops."""
    target = getattr(node, "target", None)
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return ""
    return str(target.overloadpacket.__name__).removesuffix("_")


def steps(tensor: torch.Tensor) -> list[object]:
    """The strides that a kernel depends on: all for images, else those of sizes other than 1."""
    sizes = zip(tensor.stride(), tensor.shape, strict=True)
    image = tensor.ndim > 3
    return [stride for stride, size in sizes if image or type(size) is not int or size != 1]


def is_dense(tensor: torch.Tensor) -> bool:
    """True for a contiguous tensor with the strides that an op gives a new one.

    One row of a part of a split tensor is contiguous, and has the strides of the whole.
    """
    step = 1
    for stride, size in zip(reversed(tensor.stride()), reversed(tensor.shape), strict=True):
        if stride != step:
            return False
        step *= max(size, 1)
    return True


def is_form_of(new: object, recorded: OpOverload) -> bool:
    """True for the functional form of a recorded op, or the op itself."""
    name = schema_of(recorded).name
    return isinstance(new, OpOverload) and schema_of(new).name in (name, name.removesuffix("_"))
