"""Updates of large parameters, each as a node of its own.

An `Each`, or a fused kernel over lists, updates many parameters in one node, which waits for the
last of their gradients. Taken apart, a large one is updated as soon as its own gradient is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import fx
from torch.fx.node import Argument

from ..._torch import FUSED_KERNELS, OpOverload, schema_of
from ...ir import nodes
from ...ir.each import Each, is_each
from ...ir.program import Program
from ...ir.values import tensors_of

_LEAST_BYTES = 32 * 2**10
"""A row of smaller tensors stays among others: its gradient takes little."""


class _Call(NamedTuple):
    """A node's target and arguments, of which some are columns: one value for each row."""

    target: Any
    args: tuple[Argument, ...]


def apart(program: Program) -> Program:
    """A copy in which each large row is a node of its own; small rows share one."""
    found = program.copy()
    for node in list(found.nodes):
        columns = _columns(node)
        parts = _parts(columns) if columns else []
        if len(parts) > 1:
            _split(found.gm.graph, node, parts, len(columns[0]))
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


def _split(graph: fx.Graph, node: fx.Node, parts: Sequence[Sequence[int]], rows: int) -> None:
    """Put a node for each part in the place of ``node``."""
    results = list(node.meta["val"])
    places: dict[int, tuple[fx.Node, int]] = {}
    """Result of ``node`` -> the node that gives it now, and which of its results it is."""
    with graph.inserting_before(node):
        for part in parts:
            own = [first + row for first in range(0, len(results), rows) for row in part]
            made = nodes.call(graph, *_call(node, part), dict(node.kwargs))
            made.meta.update(node.meta, val=[results[i] for i in own])
            places.update({i: (made, number) for number, i in enumerate(own)})
    for user in list(node.users):
        made, number = places[nodes.item(user)]
        user.args = (made, number)
    graph.erase_node(node)


def _call(node: fx.Node, part: Sequence[int]) -> _Call:
    """``node`` for some of its rows."""

    def of(column: Argument) -> Argument:
        return (
            [column[row] for row in part]
            if isinstance(column, (list, tuple)) and column
            else column
        )

    if isinstance(node.target, Each):
        whole = node.target
        owners = [whole.rows[row] for row in part]
        columns = [of(column) for column in nodes.sequence(node.args[0])]
        return _Call(
            Each(whole.__name__, whole.body, owners, whole.columns), (columns, node.args[1])
        )
    return _Call(node.target, tuple(map(of, node.args)))
