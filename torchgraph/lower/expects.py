"""Ordering constraints between predicates and the ops that must run after them.

The program's own order satisfies them. Code that reorders a program, or compiles parts of it, asks
here.
"""

from __future__ import annotations

import torch
from torch import fx

from .. import library
from .._torch import OpOverload, schema_of
from ..ir import effects
from ..ir.program import Phase, Program, provenance
from ..ir.values import tensors_of


def expects_of(program: Program) -> list[fx.Node]:
    """The predicates, in order."""
    return [node for node in program.nodes if effects.of(node).expects]


def guards(program: Program) -> dict[fx.Node, list[fx.Node]]:
    """node -> predicates before it that have to hold before it runs.

    Of a size that depends on data: all that is computed from the sized value relies on it. Of
    anything: the update, which may then write its states in place; and what a GPU cannot take back,
    an index out of range, which ends the process.
    """
    sized: dict[fx.Node, list[fx.Node]] = {}
    latest: list[fx.Node] = []
    found: dict[fx.Node, list[fx.Node]] = {}
    for node in program.nodes:
        if effects.of(node).expects:
            latest = [node]
            if node.target is library.expect_shape:
                sized.setdefault(node.all_input_nodes[0], []).append(node)
        elif node.op == "call_function":
            waits = [one for source in node.all_input_nodes for one in sized.get(source, ())]
            late = provenance(node).phase is Phase.UPDATE
            waits += latest if latest and (late or _may_abort(node)) else ()
            if waits:
                found[node] = waits
    return found


_ASSERTING = frozenset(
    {
        *("aten::_assert_async", "aten::bernoulli", "aten::binary_cross_entropy"),
        *("aten::binomial", "aten::masked_scatter", "aten::poisson"),
    }
)
"""Ops whose CUDA kernels end the process on values out of their range, besides those that index."""


def _may_abort(node: fx.Node) -> bool:
    """True for a GPU op that may assert, and so abort the process, on unchecked values.

    It asserts, or reads integers, not element by element, and may index by them.
    """
    if not isinstance(node.target, OpOverload):
        return False
    tensors = list(tensors_of(node.all_input_nodes))
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return False
    if schema_of(node.target).name in _ASSERTING:
        return True
    whole = [t.dtype for t in tensors if not (t.is_floating_point() or t.is_complex())]
    return torch.Tag.pointwise not in node.target.tags and any(d is not torch.bool for d in whole)
