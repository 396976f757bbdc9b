"""More ops that take a moving number, rewritten for a half whose numbers lie on its own device.

`numbers` has those that regions need as well. In ``emit(op, *args)`` a number is an element of the
vector: a float64 tensor without dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import Argument, Target

from ... import library
from ..._torch import OpOverload
from ...ir.values import leaves
from . import list_forms, numbers

aten = torch.ops.aten

_COMPUTED_IN = (torch.float32, torch.float64)
"""An op of these dtypes rounds its number to them in any case."""
_Emit = Callable[..., fx.Node]


def has_form(node: fx.Node) -> bool:
    """True when `rewritten` or `numbers.with_tensors` takes the op, or the op on single tensors."""
    if node.target is library.update_scale:
        return True
    target = list_forms.single(node) or node.target
    values = leaves(node.meta.get("val"))
    return all(has_rule(target, one) or numbers.takes_tensors(target, one) for one in values)


def has_rule(target: object, wanted: object) -> bool:
    """True when `rewritten` takes the op with that fake result."""
    if target is aten.lerp.Scalar:
        return getattr(wanted, "dtype", None) in _COMPUTED_IN
    return target in _RULES


def rescaled(
    emit: _Emit,
    state: Sequence[Argument],
    found_inf: Argument,
    growth: Argument,
    backoff: Argument,
    interval: Argument,
) -> list[fx.Node]:
    """Emit ``torchgraph::update_scale`` as tensor ops: the new scale, the count of good steps."""
    scale, good = state
    bad = emit(aten.ne.Scalar, found_inf, 0)
    more = emit(aten.add.Tensor, good, 1)
    full = emit(aten.eq.Tensor, more, interval)
    larger = _times(emit, scale, growth)
    grows = emit(aten.logical_and.default, full, emit(aten.isfinite.default, larger))
    kept = emit(aten.where.self, grows, larger, scale)
    new_scale = emit(aten.where.self, bad, _times(emit, scale, backoff), kept)
    begins = emit(aten.logical_or.default, bad, full)
    return [new_scale, emit(aten.where.self, begins, emit(aten.zeros_like.default, good), more)]


def _times(emit: _Emit, scale: Argument, factor: Argument) -> fx.Node:
    """The product as torch's kernel computes it: in float64, then rounded."""
    product = emit(aten.mul.Tensor, emit(aten._to_copy.default, scale, dtype=torch.float64), factor)
    return emit(aten._to_copy.default, product, dtype=torch.float32)


def fills_by_mask(node: fx.Node) -> bool:
    """True for ``x[mask] = value`` with one value: `torch.where` needs no number of hits."""
    if node.target is not aten.index_put.default:
        return False
    target, indices, value, *accumulate = node.args
    if not (isinstance(indices, (list, tuple)) and len(indices) == 1) or any(accumulate):
        return False
    values = [a.meta["val"] for a in (target, *indices, value) if isinstance(a, fx.Node)]
    if len(values) != 3:
        return False
    filled, mask, one = values
    return mask.dtype is torch.bool and mask.shape == filled.shape and one.ndim == 0


def filled(emit: _Emit, args: tuple[Any, ...]) -> fx.Node:
    """Emit a fill by mask, found by `fills_by_mask`, as ``aten.where``."""
    target, (mask,), value = args[:3]
    return emit(aten.where.self, mask, value, target)


def rewritten(
    emit: _Emit,
    target: Target,
    wanted: torch.Tensor,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Argument],
) -> fx.Node:
    """The op on ``args`` and ``kwargs``, in the dtype of ``wanted``."""
    if target is aten.lerp.Scalar:
        start, end, weight = args
        return emit(aten.lerp.Tensor, start, end, _cast(emit, weight, wanted.dtype))
    return _cast(emit, _RULES[target](emit, *args, **kwargs), wanted.dtype)


def _cast(emit: _Emit, value: fx.Node, dtype: torch.dtype) -> fx.Node:
    if value.meta["val"].dtype is dtype:
        return value
    return emit(aten._to_copy.default, value, dtype=dtype)


def _scalar_tensor(emit: _Emit, number: fx.Node, **_: object) -> fx.Node:
    return number  # the cast makes it what was asked for


def _clamp(emit: _Emit, x: fx.Node, low: Argument = None, high: Argument = None) -> fx.Node:
    pairs = (
        (low, aten.clamp_min.default, aten.clamp_min.Tensor),
        (high, aten.clamp_max.default, aten.clamp_max.Tensor),
    )
    for bound, by_number, by_tensor in pairs:
        if bound is not None:
            x = emit(by_tensor if isinstance(bound, fx.Node) else by_number, x, bound)
    return x


def _masked_fill(emit: _Emit, x: fx.Node, mask: Argument, value: fx.Node) -> fx.Node:
    return emit(aten.masked_fill.Tensor, x, mask, _cast(emit, value, x.meta["val"].dtype))


def _reversed_sub(emit: _Emit, x: fx.Node, number: Argument, alpha: Argument = 1) -> fx.Node:
    return emit(aten.sub.Tensor, number, x if alpha == 1 else emit(aten.mul.Tensor, x, alpha))


def _form(op: OpOverload) -> Callable[..., fx.Node]:
    return lambda emit, *args: emit(op, *args)


_RULES: dict[Target, Callable[..., fx.Node]] = {
    aten.scalar_tensor.default: _scalar_tensor,
    aten.clamp.default: _clamp,
    aten.masked_fill.Scalar: _masked_fill,
    aten.rsub.Scalar: _reversed_sub,
    aten.pow.Scalar: _form(aten.pow.Tensor_Tensor),
    aten.eq.Scalar: _form(aten.eq.Tensor),
    aten.ne.Scalar: _form(aten.ne.Tensor),
    aten.lt.Scalar: _form(aten.lt.Tensor),
    aten.le.Scalar: _form(aten.le.Tensor),
    aten.gt.Scalar: _form(aten.gt.Tensor),
    aten.ge.Scalar: _form(aten.ge.Tensor),
}
