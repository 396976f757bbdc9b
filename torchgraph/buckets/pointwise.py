"""Rules for ops that compute each entry from the entries at its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import fx

from . import dims
from .dims import ONE, Dims, Factors
from .value import Known, Op, PaddedTensor, Padding, Refused, checked, joined, names

_KEEP_ZERO = names(
    "add sub neg abs relu tanh sin tan sgn sign sqrt gelu silu leaky_relu elu celu expm1 log1p erf "
    "asin atan asinh atanh sinh square maximum minimum ceil floor round trunc frac hardtanh mish "
    "hardswish logical_or bitwise_or logical_xor bitwise_xor _to_copy mul div pow "
    "logical_and bitwise_and"
)
"""Zero where every tensor is: as long as the numbers among the arguments do not add to it."""
_KEEP_FINITE = names(
    "add sub rsub neg abs mul square maximum minimum clamp clamp_min clamp_max lerp addcmul "
    "relu leaky_relu elu celu gelu silu mish softplus tanh sigmoid hardtanh hardswish hardsigmoid "
    "threshold sin cos atan erf sgn sign ceil floor round trunc frac _to_copy eq ne lt le gt ge "
    "isnan isinf isfinite logical_and logical_or logical_xor logical_not bitwise_and bitwise_or "
    "bitwise_xor bitwise_not mse_loss smooth_l1_loss huber_loss soft_margin_loss "
    "binary_cross_entropy_with_logits"
)
"""Finite where every tensor is, as long as the numbers among the arguments are."""
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
_INVERSE = {Padding.ZERO: Padding.TRUE, Padding.TRUE: Padding.ZERO}
_POLES = frozenset(["logit_backward"])
"""Infinite for some finite arguments."""


def applies(op: Op) -> bool:
    """True for ops that these rules know."""
    tags = getattr(op.padded.target, "tags", ())
    if op.space != "aten":
        return False
    known = op.name in _BACKWARD_BESIDES_TAGGED or op.name in _BESIDES_TAGGED
    return known or torch.Tag.pointwise in tags


def rule(op: Op) -> Known:
    """The results of a pointwise op."""
    op.literals()
    if op.arg("reduction", _NONE) not in (_NONE, "none", None):
        raise Refused("it takes the mean or the sum over rows of which some are padding")
    tensors = op.tensors()
    shapes = op.shapes()
    if len(shapes) != 1 or shapes[0] is None:
        raise Refused("it has several results")
    found = broadcast(tensors, shapes[0])
    return PaddedTensor(found, _padding(op, tensors, found))


def broadcast(tensors: Sequence[PaddedTensor], shape: Sequence[dims.Pair]) -> Dims:
    """The dimensions of an op over tensors that are broadcast together."""
    found: list[Factors] = []
    for place in range(len(shape)):
        from_end = len(shape) - place
        here = {t.dims[-from_end] for t in tensors if len(t.dims) >= from_end} - {ONE}
        if len(here) > 1:
            raise Refused("it brings together rows and something that has no rows")
        found.append(here.pop() if here else ONE)
    return checked(found, shape)


def cover(value: PaddedTensor, rank: int) -> frozenset[int]:
    """The padded dimensions of a value, as those of a result of that rank."""
    return frozenset(place + rank - len(value.dims) for place in value.padded)


def _padding(op: Op, tensors: Sequence[PaddedTensor], found: Dims) -> Padding:
    every = dims.padded(found)
    rank = len(found)

    def zero(value: PaddedTensor) -> bool:
        if value.padding is Padding.NULL:
            return True
        return value.padding is Padding.ZERO and cover(value, rank) == every

    if every and op.name in _PRODUCTS and _product_is_zero(tensors, rank, every):
        return Padding.ZERO
    if op.name in ("where", "masked_fill"):
        return _chosen(op, zero, rank, every)
    inverts = op.name in ("logical_not", "bitwise_not") and _is_bool(op)
    if inverts and tensors[0].padding in _INVERSE:
        return _INVERSE[tensors[0].padding]
    if op.name.endswith("_backward") and zero(tensors[0]):
        safe = all(t.copied or (t.finite and op.name not in _POLES) for t in tensors[1:])
        return Padding.ZERO if safe else Padding.ANY
    if op.name == "div" and zero(tensors[0]) and len(tensors) == 2:
        return Padding.ZERO if tensors[1].copied else Padding.ANY
    if tensors and op.name in _KEEP_ZERO and all(map(zero, tensors)) and _numbers_keep_zero(op):
        null = all(t.padding is Padding.NULL for t in tensors)
        return Padding.NULL if null else Padding.ZERO
    kind = joined(tensors)
    return kind if kind is not Padding.FINITE or keeps_finite(op) else Padding.ANY


def keeps_finite(op: Op) -> bool:
    """True when the result is finite where every tensor among the arguments is."""
    if op.name == "div":  # a divisor that is a copy is zero only where that of real rows is
        by = op.arg("other")
        if not isinstance(by, fx.Node):
            return bool(by != 0)
        known = op.known(by)
        return isinstance(known, PaddedTensor) and known.copied
    if op.name == "pow":
        exponent = op.arg("exponent")
        return isinstance(exponent, (int, float)) and exponent >= 0 and exponent % 1 == 0
    given = (*op.padded.args, *op.padded.kwargs.values())
    finite = all(math.isfinite(one) for one in given if isinstance(one, float))
    return finite and op.name in _KEEP_FINITE


def _product_is_zero(tensors: Sequence[PaddedTensor], rank: int, every: frozenset[int]) -> bool:
    """True where one factor is zero at each padded entry, and none can be infinite there."""
    if not all(t.finite for t in tensors):
        return False
    zeros = [cover(t, rank) for t in tensors if t.padding is Padding.ZERO]
    return frozenset().union(*zeros) == every if zeros else False


def _chosen(
    op: Op, zero: Callable[[PaddedTensor], bool], rank: int, every: frozenset[int]
) -> Padding:
    """``where(condition, yes, no)``; ``masked_fill(no, condition, yes)``."""
    first = "condition" if op.name == "where" else "mask"
    condition = op.value(op.arg(first))
    yes, no = (op.arg("self"), op.arg("other"))
    if op.name == "masked_fill":
        yes, no = op.arg("value"), op.arg("self")

    def null(argument: object) -> bool:
        if isinstance(argument, fx.Node):
            known = op.known(argument)
            return isinstance(known, PaddedTensor) and zero(known)
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
        copied = isinstance(known, PaddedTensor) and known.copied and not known.whole
        number = isinstance(taken[0], (bool, int, float)) and math.isfinite(taken[0])
        finite = number or (isinstance(known, PaddedTensor) and known.finite and not known.whole)
        return Padding.COPY if copied else Padding.FINITE if finite else Padding.ANY
    values = [op.known(one) for one in taken if isinstance(one, fx.Node)]
    kind = joined(value for value in values if isinstance(value, PaddedTensor))
    return kind if condition.copied else Padding.ANY


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
