"""Indices that are checked before compiled code looks them up.

Compiled code for the CPU checks them, too, in loops of several threads, where what is thrown ends
the process. So a check of its own stands before the region, and raises what eager raises.
"""

from __future__ import annotations

import torch
from torch import fx

from ..._torch import FakeTensor, OpOverload
from ...ir.effects import Effects
from ...ir.program import Program, provenance
from ...ir.values import tensors_of
from ..raising import RAISES, indices_of

_CHAIN = 16
"""The most integer ops, between values from before the region and an index, to run outside."""


class CheckIndex:
    """The target of a check; it gives nothing."""

    __name__ = "check_index"
    effects = Effects()

    def __call__(self, index: torch.Tensor, low: int, high: int, ignored: int | None) -> None:
        """Raise IndexError where ``index`` holds anything that is not in [low, high)."""
        if isinstance(index, FakeTensor) or not index.numel():
            return
        least, most = torch.aminmax(index)
        if low <= int(least) and int(most) < high:
            return
        out = (index < low) | (index >= high)
        if ignored is not None:
            out &= index != ignored
        if out.any():
            raise IndexError(f"index out of range: {int(index[out][0])} is not in [{low}, {high})")


check_index = CheckIndex()


def with_checks(program: Program) -> dict[fx.Node, list[fx.Node]]:
    """Put checks into a functional program; the calls that have to come after them -> the checks.

    They are marked as what may raise, and the calls are not any more.
    """
    found: dict[fx.Node, list[fx.Node]] = {}
    for node in list(program.nodes):
        indices = indices_of(node) if RAISES in node.meta else None
        if not indices:
            continue
        del node.meta[RAISES]
        for index in indices:
            with program.gm.graph.inserting_before(node):
                check = program.gm.graph.call_function(check_index, tuple(index))
            check.meta.update(val=None, provenance=provenance(node))
            check.meta[RAISES] = True
            found.setdefault(node, []).append(check)
    return found


def computes(check: fx.Node) -> set[fx.Node]:
    """The nodes that a check depends on, if few: views and ops over integers; else empty."""
    found: set[fx.Node] = set()
    pending = list(check.all_input_nodes)
    while pending:
        node = pending.pop()
        if node.op != "call_function" or node in found:
            continue
        values = list(tensors_of(node.meta.get("val")))
        exact = all(not (v.is_floating_point() or v.is_complex()) for v in values)
        if not (isinstance(node.target, OpOverload) and exact and len(found) < _CHAIN):
            return set()
        found.add(node)
        pending.extend(node.all_input_nodes)
    return found
