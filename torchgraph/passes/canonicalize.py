"""Remove what computes nothing: identity views and copies, views of views, profiler marks.

One pass made of small rules. Each rule is about one node and gives bitwise equal results, strides
included, or leaves the node alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import fx
from torch.fx.node import Argument, Target

from .. import library
from ..ir.aliasing import escaping
from ..ir.nodes import operand
from ..ir.program import Program
from ..ir.rewriter import Rewriter
from ..ir.values import is_contiguous, same_layout
from .base import Pass

aten = torch.ops.aten


@dataclass(frozen=True)
class Canonicalize(Pass):
    """Applies every rule once to every node, in program order."""

    name: ClassVar[str] = "canonicalize"
    rows: ClassVar[bool] = True
    removes: ClassVar[frozenset[str]] = frozenset({"profiler"})

    def exact(self, program: Program) -> bool:
        """Always: rules that change a sign of zero or a NaN are not among them."""
        return True

    def apply(self, program: Program, edit: Rewriter) -> None:
        """Apply all rules in one walk: no rule makes an earlier node match."""
        _drop_profiler_marks(program, edit)
        outputs = _Outputs(escaping(program), set(program.output.all_input_nodes))
        _drop_gradient_marks(program, outputs, edit)
        for node in list(program.nodes):
            if node.op != "call_function" or not node.users:
                continue
            for rule in _RULES.get(node.target, ()):
                if rule(node, outputs, edit):
                    break


@dataclass
class _Outputs:
    reached: set[fx.Node]
    """Nodes whose memory reaches an output."""
    direct: set[fx.Node]
    """Nodes that are outputs."""

    def replace(self, node: fx.Node, new: fx.Node, edit: Rewriter) -> None:
        if node in self.reached:
            self.reached.add(new)
        if node in self.direct:
            self.direct.add(new)
        edit.replace(node, new)


_Rewrite = Callable[[fx.Node, _Outputs, Rewriter], bool]


def _identity_view(node: fx.Node, outputs: _Outputs, edit: Rewriter) -> bool:
    """``view(x, x.shape)``, ``detach(x)``, ``slice`` and kin that return all of x as it is."""
    return _same_memory(node, node.args[0], outputs, edit)


def _same_memory(node: fx.Node, source: Argument, outputs: _Outputs, edit: Rewriter) -> bool:
    if not isinstance(source, fx.Node) or not same_layout(_value(node), _value(source)):
        return False
    if node in outputs.direct and (source.op != "call_function" or source in outputs.direct):
        return False  # the user gets a tensor of its own, not the input or another output
    outputs.replace(node, source, edit)
    return True


def _identity_copy(node: fx.Node, outputs: _Outputs, edit: Rewriter) -> bool:
    """``clone(x)`` and ``_to_copy(x)`` that change nothing, unless an output needs the memory."""
    return _same_contents(node, node.args[0], outputs, edit)


def _precision_mark(node: fx.Node, outputs: _Outputs, edit: Rewriter) -> bool:
    """``amp.white(x)`` and ``amp.black(x)``, which have been heeded by now; else a plain copy."""
    if not _identity_copy(node, outputs, edit):
        new = edit.call(aten.clone.default, node.args, before=node, like=node)
        outputs.replace(node, new, edit)
    return True


def _layout_copy(node: fx.Node, outputs: _Outputs, edit: Rewriter) -> bool:
    """``copy(y, x)``, x in y's layout, where the layouts are equal: one per gradient."""
    layout, source = node.args[0], node.args[1]
    if not _same_contents(node, source, outputs, edit):
        return False
    if isinstance(layout, fx.Node) and layout.target in _FACTORIES:
        _erase_unused(layout, edit)
    return True


def _same_contents(node: fx.Node, source: Argument, outputs: _Outputs, edit: Rewriter) -> bool:
    if node in outputs.reached or node.kwargs.get("pin_memory"):
        return False
    if not isinstance(source, fx.Node) or not same_layout(_value(node), _value(source)):
        return False
    outputs.replace(node, source, edit)
    return True


def _neutral_operand(node: fx.Node, outputs: _Outputs, edit: Rewriter) -> bool:
    """``x * 1``, ``x / 1``, and ``x + 0`` on integers only: -0.0 + 0 is 0.0."""
    neutral = _NEUTRAL[node.target]
    other = node.args[1] if len(node.args) > 1 else None
    if type(other) not in (int, float) or other != neutral:
        return False
    exact = _INTEGERS if neutral == 0 else _INTEGERS | _FLOATS
    return _dtype(node.args[0]) in exact and _identity_copy(node, outputs, edit)


def _view_of_view(node: fx.Node, outputs: _Outputs, edit: Rewriter) -> bool:
    """``view(view(x))`` on a contiguous x, for which every view of a view is a view."""
    inner = node.args[0]
    if not (isinstance(inner, fx.Node) and inner.target in _RESHAPES):
        return False
    base = inner.args[0]
    if not (isinstance(base, fx.Node) and is_contiguous(_value(base))):
        return False
    if not _same_memory(node, base, outputs, edit):
        new = edit.call(node.target, (base, *node.args[1:]), before=node, like=node)
        outputs.replace(node, new, edit)
    _erase_unused(inner, edit)
    return True


def _permutation_of_permutation(node: fx.Node, outputs: _Outputs, edit: Rewriter) -> bool:
    """``t(t(x))`` and ``permute(transpose(x))``: one permutation, or none."""
    inner = node.args[0]
    outer_order, inner_order = _order(node), _order(inner)
    if outer_order is None or inner_order is None or not isinstance(inner, fx.Node):
        return False
    base = inner.args[0]
    if not _same_memory(node, base, outputs, edit):
        order = [inner_order[axis] for axis in outer_order]
        new = edit.call(aten.permute.default, (base, order), before=node, like=node)
        outputs.replace(node, new, edit)
    _erase_unused(inner, edit)
    return True


def _drop_profiler_marks(program: Program, edit: Rewriter) -> None:
    """Marks that ``record_function`` leaves behind, as ``Optimizer.step`` does."""
    for node in reversed(list(program.nodes)):
        if getattr(node.target, "namespace", "") == "profiler" and not node.users:
            edit.erase(node)


def _drop_gradient_marks(program: Program, outputs: _Outputs, edit: Rewriter) -> None:
    """``gradient(x, name)``, one per parameter: many have one reader, the update."""
    others: dict[fx.Node, fx.Node] = {}
    for node in program.nodes:
        if node.target is not library.gradient or node in outputs.reached:
            continue
        source = others.get(operand(node), operand(node))
        if node.users and same_layout(_value(node), _value(source)):
            others[node] = source
    edit.replace_all(others)


def _order(node: object) -> list[int] | None:
    """The permutation that a node applies: result dimension i is input dimension order[i]."""
    if not isinstance(node, fx.Node) or node.target not in _PERMUTATIONS:
        return None
    rank = _value(node).dim()
    arguments: Any = node.args[1:]
    order = list(range(rank))
    if node.target is aten.permute.default:
        return [axis % rank for axis in arguments[0]]
    if node.target is aten.t.default:
        return order[::-1]
    first, second = (axis % rank for axis in arguments)
    order[first], order[second] = order[second], order[first]
    return order


def _erase_unused(node: fx.Node, edit: Rewriter) -> None:
    if not node.users:
        edit.erase(node)


def _value(node: object) -> Any:
    return node.meta.get("val") if isinstance(node, fx.Node) else None


def _dtype(node: object) -> torch.dtype | None:
    value = _value(node)
    return value.dtype if isinstance(value, torch.Tensor) else None


_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
# Half types turn every NaN into one NaN, complex products make NaN of infinity times zero.
_FLOATS = frozenset({torch.float32, torch.float64})
_RESHAPES = frozenset({aten.view.default, aten._unsafe_view.default})
_PERMUTATIONS = frozenset({aten.permute.default, aten.t.default, aten.transpose.int})
_FACTORIES = frozenset({aten.new_empty_strided.default, aten.empty_strided.default})
_NEUTRAL: dict[Target, int] = {
    aten.add.Tensor: 0,
    aten.sub.Tensor: 0,
    aten.mul.Tensor: 1,
    aten.div.Tensor: 1,
}
_RULES: dict[Target, tuple[_Rewrite, ...]] = {
    **dict.fromkeys(
        (
            aten.alias.default,
            aten.detach.default,
            aten.lift_fresh.default,
            aten.expand.default,
            aten.slice.Tensor,
            aten.squeeze.default,
            aten.squeeze.dim,
            aten.squeeze.dims,
            aten.as_strided.default,
            aten.view.dtype,
        ),
        (_identity_view,),
    ),
    **dict.fromkeys(_RESHAPES, (_identity_view, _view_of_view)),
    **dict.fromkeys(_PERMUTATIONS, (_identity_view, _permutation_of_permutation)),
    **dict.fromkeys((aten.clone.default, aten._to_copy.default), (_identity_copy,)),
    **dict.fromkeys((library.amp_white, library.amp_black), (_precision_mark,)),
    aten.copy.default: (_layout_copy,),
    **dict.fromkeys(_NEUTRAL, (_neutral_operand,)),
}
