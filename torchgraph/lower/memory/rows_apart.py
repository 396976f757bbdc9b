"""Updates of large parameters, each as a node of its own.

An `Each`, or a fused kernel over lists, updates many parameters in one node, which waits for the
last of their gradients. Taken apart, a large one is updated as soon as its own gradient is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx
from torch.fx.node import Argument

from ..._torch import FUSED_KERNELS, OpOverload, schema_of
from ...ir import nodes
from ...ir.each import is_each
from ...ir.program import Program
from ...ir.values import tensors_of
from ..row_parts import split_rows

_LEAST_BYTES = 32 * 2**10
"""A row of smaller tensors stays among others: its gradient takes little."""


def apart(program: Program) -> Program:
    """A copy in which each large row is a node of its own; small rows share one."""
    found = program.copy()
    for node in list(found.nodes):
        columns = _columns(node)
        parts = _parts(columns) if columns else []
        if len(parts) > 1:
            split_rows(found.gm.graph, node, parts, len(columns[0]))
    return found


def _columns(node: fx.Node) -> list[Sequence[Argument]]:
    """The columns of a node that does the same to several rows; none of any other node."""
    if is_each(node):
        found = list(map(nodes.sequence, nodes.sequence(node.args[0])))
    elif _is_fused(node):
        found = [argument for argument in node.args if isinstance(argument, (list, tuple))]
    else:
        return []
    return [column for column in found if column]


def _is_fused(node: fx.Node) -> bool:
    """True for the functional form of a fused optimizer's kernel."""
    op = node.target
    if not isinstance(op, OpOverload) or op.namespace != "torchgraph":
        return False
    return f"{schema_of(op).name.removeprefix('torchgraph::')}_" in FUSED_KERNELS


def _parts(columns: Sequence[Sequence[Argument]]) -> list[list[int]]:
    """The rows that stay together, in order of their first."""
    small: list[int] = []
    found: list[list[int]] = []
    for number, row in enumerate(zip(*columns, strict=True)):
        largest = max((value.nbytes for value in tensors_of(row)), default=0)
        if largest >= _LEAST_BYTES:
            found.append([number])
            continue
        if not small:
            found.append(small)
        small.append(number)
    return found
