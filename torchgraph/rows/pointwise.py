"""Rules for ops that compute each entry from the entries at its place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from . import dims
from .dims import ONE, Dims, Factors
from .value import Op, Padding, Refused, Value, checked, names

_KEEP_ZERO = names(
    "add sub neg abs relu tanh sin tan sgn sign sqrt gelu silu leaky_relu elu celu expm1 log1p erf "
    "asin atan asinh atanh sinh square maximum minimum ceil floor round trunc frac hardtanh mish "
    "hardswish logical_or bitwise_or logical_xor bitwise_xor _to_copy mul div pow "
    "logical_and bitwise_and"
)
"""Zero where every tensor is: as long as the numbers among the arguments do not add to it."""
_PRODUCTS = frozenset(["mul", "logical_and", "bitwise_and"])
_BACKWARD_BESIDES_TAGGED = names(
    "hardswish_backward mse_loss_backward smooth_l1_loss_backward huber_loss_backward "
    "native_dropout_backward binary_cross_entropy_backward soft_margin_loss_backward"
)
_BESIDES_TAGGED = names(
    "_to_copy mse_loss smooth_l1_loss huber_loss binary_cross_entropy soft_margin_loss "
    "binary_cross_entropy_with_logits lerp"
)
"""They reduce nothing where ``reduction`` is 0."""
_NONE = 0
_INVERSE = {Padding.ZERO: Padding.TRUE, Padding.TRUE: Padding.ZERO, Padding.COPY: Padding.COPY}


def applies(op: Op) -> bool:
    """True for ops that these rules know."""
    tags = getattr(op.padded.target, "tags", ())
    if op.space != "aten":
        return False
    known = op.name in _BACKWARD_BESIDES_TAGGED or op.name in _BESIDES_TAGGED
    return known or torch.Tag.pointwise in tags


def rule(op: Op) -> Any:
    """The result of such an op."""
    op.literals()
    if op.arg("reduction", _NONE) not in (_NONE, "none", None):
        raise Refused("it takes the mean or the sum over rows of which some are padding")
    tensors = op.tensors()
    shapes = op.shapes()
    if len(shapes) != 1 or shapes[0] is None:
        raise Refused("it has several results")
    found = broadcast(tensors, shapes[0])
    return Value(found, _padding(op, tensors, found))


def broadcast(tensors: Sequence[Value], shape: Sequence[dims.Pair]) -> Dims:
    """The dimensions of an op over tensors that are broadcast together."""
    found: list[Factors] = []
    for place in range(len(shape)):
        from_end = len(shape) - place
        here = {t.dims[-from_end] for t in tensors if len(t.dims) >= from_end} - {ONE}
        if len(here) > 1:
            raise Refused("it brings together rows and something that has no rows")
        found.append(here.pop() if here else ONE)
    return checked(found, shape)


def cover(value: Value, rank: int) -> frozenset[int]:
    """The padded dimensions of a value, as those of a result of that rank."""
    return frozenset(place + rank - len(value.dims) for place in value.padded)


def _padding(op: Op, tensors: Sequence[Value], found: Dims) -> Padding:
    every = dims.padded(found)
    rank = len(found)

    def zero(value: Value) -> bool:
        if value.padding is Padding.NULL:
            return True
        return value.padding is Padding.ZERO and cover(value, rank) == every

    if every and op.name in _PRODUCTS and _product_is_zero(tensors, rank, every):
        return Padding.ZERO
    if op.name in ("where", "masked_fill"):
        return _chosen(op, zero, rank, every)
    if op.name in ("logical_not", "bitwise_not") and _is_bool(op):
        return _INVERSE.get(tensors[0].padding, Padding.ANY)
    if op.name.endswith("_backward") and zero(tensors[0]):
        return Padding.ZERO if all(t.copied or zero(t) for t in tensors[1:]) else Padding.ANY
    if op.name == "div" and zero(tensors[0]) and len(tensors) == 2:
        return Padding.ZERO if tensors[1].copied else Padding.ANY
    if tensors and op.name in _KEEP_ZERO and all(map(zero, tensors)) and _numbers_keep_zero(op):
        null = all(t.padding is Padding.NULL for t in tensors)
        return Padding.NULL if null else Padding.ZERO
    return Padding.COPY if all(t.copied for t in tensors) else Padding.ANY


def _product_is_zero(tensors: Sequence[Value], rank: int, every: frozenset[int]) -> bool:
    """One factor is zero at each padded entry, and none can be infinite there by itself."""
    if not all(t.copied or t.padding in (Padding.ZERO, Padding.TRUE) for t in tensors):
        return False
    zeros = [cover(t, rank) for t in tensors if t.padding is Padding.ZERO]
    return frozenset().union(*zeros) == every if zeros else False


def _chosen(op: Op, zero: Any, rank: int, every: frozenset[int]) -> Padding:
    """``where(condition, yes, no)``; ``masked_fill(no, condition, yes)``."""
    first = "condition" if op.name == "where" else "mask"
    condition = op.value(op.arg(first))
    yes, no = (op.arg("self"), op.arg("other"))
    if op.name == "masked_fill":
        yes, no = op.arg("value"), op.arg("self")

    def null(argument: Any) -> bool:
        if isinstance(argument, fx.Node):
            known = op.known(argument)
            return isinstance(known, Value) and zero(known)
        return not isinstance(argument, torch.Tensor) and bool(argument == 0)

    decided = cover(condition, rank) == every
    if decided and condition.padding is Padding.ZERO:
        taken = [no]
    elif decided and condition.padding is Padding.TRUE:
        taken = [yes]
    else:
        taken = [yes, no]
    if all(map(null, taken)):
        return Padding.ZERO
    if len(taken) == 1:  # what no real row holds there may be infinite
        known = op.known(taken[0]) if isinstance(taken[0], fx.Node) else None
        copied = isinstance(known, Value) and known.copied and not known.whole
        finite = isinstance(taken[0], (bool, int, float)) and math.isfinite(taken[0])
        return Padding.COPY if copied or finite else Padding.ANY
    values = [op.known(one) for one in taken if isinstance(one, fx.Node)]
    copied = condition.copied and all(value is None or value.copied for value in values)
    return Padding.COPY if copied else Padding.ANY


def _is_bool(op: Op) -> bool:
    value = op.padded.meta["val"]
    return (
        value.dtype is torch.bool and op.padded.all_input_nodes[0].meta["val"].dtype is torch.bool
    )


def _numbers_keep_zero(op: Op) -> bool:
    """No number among the arguments makes something of zero."""
    if op.name == "pow":
        exponent = op.arg("exponent")
        return isinstance(exponent, (int, float)) and exponent > 0
    other = op.arg("other") if op.name in ("add", "sub", "mul", "div") else None
    if other is None:
        return op.name != "hardtanh" or op.arg("min_val") <= 0 <= op.arg("max_val")
    if isinstance(other, fx.Node):
        return op.known(other) is not None or op.name in ("mul",)
    if op.name in ("add", "sub"):
        return bool(other == 0)
    return math.isfinite(other) and (op.name == "mul" or other != 0)
