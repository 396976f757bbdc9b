"""The in-place and out forms of ops, and whether their bits may differ."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import fx

from ..._torch import OpOverload, schema_of
from ...ir import effects
from ...ir.values import is_contiguous

# Not tagged pointwise, yet each element of the result depends on the same element of self alone.
_ELEMENTWISE = frozenset(
    {
        *("aten::copy", "aten::fill", "aten::zero", "aten::masked_fill", "aten::lerp"),
        *("aten::index_put", "aten::index_add"),
    }
)
# Each element of the result depends on the same element of self, and on much of the others.
ACCUMULATING = frozenset({"aten::addmm", "aten::baddbmm"})
# As _ELEMENTWISE, of two tensors.
_ELEMENTWISE_BACKWARD = frozenset({"aten::hardtanh_backward", "aten::leaky_relu_backward"})
# On the CPU a row of the result depends on the same row of the arguments, element by element once
# the row's maximum and sum are known.
_ROW_BY_ROW = frozenset(
    {
        *("aten::_softmax", "aten::_softmax_backward_data"),
        *("aten::_log_softmax", "aten::_log_softmax_backward_data"),
    }
)
# In half precision an op and its in-place form may round a number at different points.
_HALF = frozenset({torch.float16, torch.bfloat16})


def in_place_form(op: object) -> OpOverload | None:
    """``aten.add_.Tensor`` for ``aten.add.Tensor``; None where in place could differ in a bit."""
    if not isinstance(op, OpOverload) or schema_of(op).is_mutable:
        return None
    name = schema_of(op).name
    elementwise = torch.Tag.pointwise in op.tags or name in _ELEMENTWISE | ACCUMULATING
    ours = ("aten::_foreach_", "torchgraph::", "_c10d_functional::")
    if not (elementwise or name.startswith(ours)):
        return None
    if torch.Tag.nondeterministic_seeded in op.tags:
        return None
    return effects.other_form(op)


class OutForm(NamedTuple):
    """The overload of an op that writes its results into tensors that it is given."""

    op: OpOverload
    names: tuple[str, ...]
    """The names of the arguments that take those tensors, one for each result."""


@functools.cache
def out_form(op: object) -> OutForm | None:
    """``aten.mm.out`` for ``aten.mm``; None where there is none with a kernel of its own.

    A generated one computes elsewhere and copies, which gains nothing.
    """
    if not isinstance(op, OpOverload) or op.namespace != "aten":
        return None
    wanted = [(argument.name, str(argument.type)) for argument in schema_of(op).arguments]
    packet = getattr(torch.ops.aten, schema_of(op).name.removeprefix("aten::"))
    for name in packet.overloads():
        found = getattr(packet, name)
        given = schema_of(found).arguments
        names = tuple(argument.name for argument in given if argument.is_out)
        taken = [(argument.name, str(argument.type)) for argument in given if not argument.is_out]
        fits = taken == wanted and len(names) == len(schema_of(op).returns)
        if names and fits and torch.Tag.generated not in found.tags:
            return OutForm(found, names)
    return None


def out_form_over_arguments(node: fx.Node) -> OutForm | None:
    """The `out_form` of a call that may write over one of the arguments that it reads."""
    op = node.target
    if not isinstance(op, OpOverload) or torch.Tag.nondeterministic_seeded in op.tags:
        return None
    name = schema_of(op).name
    elementwise = torch.Tag.pointwise in op.tags or name in _ELEMENTWISE_BACKWARD
    if not elementwise and not (name in _ROW_BY_ROW and _is_row_by_row(node)):
        return None
    found = out_form(op)
    return found if found is not None and len(found.names) == 1 else None


def _is_row_by_row(node: fx.Node) -> bool:
    """True for a softmax, or its gradient, over the last dimension of contiguous memory."""
    value = node.meta["val"]
    dim = node.args[2 if "backward" in str(node.target) else 1]
    values = [value, *(source.meta["val"] for source in node.all_input_nodes)]
    rows = isinstance(dim, int) and dim % max(value.ndim, 1) == value.ndim - 1
    return rows and all(one.device.type == "cpu" and is_contiguous(one) for one in values)


def minds_form(node: fx.Node) -> bool:
    """True for an op whose last bits may depend on its form.

    In half precision that is one that takes a number. Of a complex product, the compiler's loop for
    memory that nobody writes rounds once where its other loop rounds twice: writing over an
    argument takes the other. The two forms of an op of our own run the same kernel.
    """
    if getattr(node.target, "namespace", "") == "torchgraph":
        return False
    value = node.meta["val"]
    items = value if isinstance(value, (tuple, list)) else (value,)
    dtypes = {item.dtype for item in items if isinstance(item, torch.Tensor)}
    if any(dtype.is_complex for dtype in dtypes):
        return True
    return bool(dtypes & _HALF) and any(map(_holds_number, (*node.args, *node.kwargs.values())))


def _holds_number(argument: object) -> bool:
    if isinstance(argument, fx.Node):
        return not isinstance(argument.meta.get("val"), (torch.Tensor, tuple, list))
    if isinstance(argument, (tuple, list)):
        return any(map(_holds_number, argument))
    return isinstance(argument, (int, float)) and not isinstance(argument, bool)
