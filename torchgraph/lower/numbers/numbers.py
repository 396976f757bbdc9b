"""Ops that take a moving number, rewritten to take it as a 0-dim float64 tensor.

A compiled region must not contain a learning rate as a constant, nor read it on the host. The
numbers of a region come as one float64 vector, and an op gets its number as an element of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import fx
from torch.fx.node import Argument, Target

from ..._torch import FakeTensor, OpOverload
from ...ir.values import valued

aten = torch.ops.aten

_Emit = Callable[..., fx.Node]
_Rule = Callable[..., fx.Node]


def is_number(value: object) -> bool:
    """True for a node whose value is a Python number, also a symbolic one."""
    return isinstance(value, fx.Node) and isinstance(
        value.meta.get("val"), (torch.SymFloat, torch.SymInt, float, int)
    )


def moving(node: fx.Node) -> list[fx.Node]:
    """The numbers among the arguments of a tensor op."""
    return [arg for arg in node.all_input_nodes if is_number(arg)]


def vector(values: Sequence[float], device: torch.device) -> torch.Tensor:
    """A float64 tensor of ``values``. A GPU is not waited for.

    The pinned memory is torch's, which does not hand it out again before the copy is done.
    """
    held = torch.tensor(values, dtype=torch.float64, pin_memory=device.type == "cuda")
    return held.to(device, non_blocking=True)


def takes_tensors(target: object, value: object) -> bool:
    """True when `with_tensors` has a rule for the op and its result is of floating point."""
    return target in _RULES and isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def with_tensors(
    graph: fx.Graph,
    target: Target,
    wanted: FakeTensor,
    args: tuple[Argument, ...],
    kwargs: Mapping[str, Argument],
) -> fx.Node:
    """The op on ``args`` and ``kwargs``, numbers among which are 0-dim float64 nodes now.

    Computes what the op computes with the numbers, in the dtype of ``wanted``, the fake result, at
    least.
    """

    def emit(op: OpOverload, *given: Argument) -> fx.Node:
        return valued(wanted.fake_mode, graph.call_function(op, given))

    result = _RULES[target](emit, *args, **kwargs)
    if result.meta["val"].dtype == wanted.dtype:
        return result
    cast = graph.call_function(aten._to_copy.default, (result,), {"dtype": wanted.dtype})
    cast.meta["val"] = wanted
    return cast


def _same(op: OpOverload) -> _Rule:
    return lambda emit, *args: emit(op, *args)


def _scaled_sum(op: OpOverload) -> _Rule:
    def rule(emit: _Emit, x: Argument, y: Argument, *, alpha: Argument = 1) -> fx.Node:
        return emit(op, x, y if alpha == 1 else emit(aten.mul.Tensor, y, alpha))

    return rule


def _addcmul(emit: _Emit, x: Argument, a: Argument, b: Argument, *, value: Argument = 1) -> fx.Node:
    product = emit(aten.mul.Tensor, emit(aten.mul.Tensor, a, value), b)
    return emit(aten.add.Tensor, x, product)


def _addcdiv(emit: _Emit, x: Argument, a: Argument, b: Argument, *, value: Argument = 1) -> fx.Node:
    quotient = emit(aten.div.Tensor, emit(aten.mul.Tensor, a, value), b)
    return emit(aten.add.Tensor, x, quotient)


def _lerp(emit: _Emit, x: Argument, end: Argument, weight: Argument) -> fx.Node:
    """Linear interpolation in ATen's two forms, exact at both ends."""
    way = emit(aten.sub.Tensor, end, x)
    near = emit(aten.add.Tensor, x, emit(aten.mul.Tensor, way, weight))
    rest = emit(aten.sub.Tensor, emit(aten.neg.default, weight), -1)
    far = emit(aten.sub.Tensor, end, emit(aten.mul.Tensor, way, rest))
    small = emit(aten.lt.Scalar, emit(aten.abs.default, weight), 0.5)
    return emit(aten.where.self, small, near, far)


_RULES: dict[Target, _Rule] = {
    aten.mul.Tensor: _same(aten.mul.Tensor),
    aten.mul.Scalar: _same(aten.mul.Tensor),
    aten.div.Tensor: _same(aten.div.Tensor),
    aten.div.Scalar: _same(aten.div.Tensor),
    aten.add.Tensor: _scaled_sum(aten.add.Tensor),
    aten.add.Scalar: _scaled_sum(aten.add.Tensor),
    aten.sub.Tensor: _scaled_sum(aten.sub.Tensor),
    aten.sub.Scalar: _scaled_sum(aten.sub.Tensor),
    aten.pow.Tensor_Scalar: _same(aten.pow.Tensor_Tensor),
    aten.addcmul.default: _addcmul,
    aten.addcdiv.default: _addcdiv,
    aten.lerp.Scalar: _lerp,
    aten.clamp_min.default: _same(aten.clamp_min.Tensor),
    aten.clamp_max.default: _same(aten.clamp_max.Tensor),
    aten.where.ScalarOther: _same(aten.where.self),
    aten.where.ScalarSelf: _same(aten.where.self),
}
