"""Nodes that do the same to several rows, split into nodes for some of the rows.

A row is one value of each column: a parameter, its gradient, its moments. The columns are lists
among the arguments of an op over lists, or the columns of an `Each`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx
from torch.fx.node import Argument

from ..ir import nodes
from ..ir.each import Each


def split_rows(
    graph: fx.Graph, node: fx.Node, parts: Sequence[Sequence[int]], rows: int
) -> list[fx.Node]:
    """Put a node for each part in the place of ``node``, and return them.

    Args:
        parts: the numbers of the rows, each in one part.
        rows: how many ``node`` has. Its results are column after column.
    """
    results = list(node.meta["val"])
    places: dict[int, tuple[fx.Node, int]] = {}
    """Result of ``node`` -> the node that gives it now, and which of its results it is."""
    made = []
    with graph.inserting_before(node):
        for part in parts:
            own = [first + row for first in range(0, len(results), rows) for row in part]
            new = nodes.call(graph, *_of_part(node, part), dict(node.kwargs))
            new.meta.update(node.meta, val=[results[i] for i in own])
            places.update({i: (new, number) for number, i in enumerate(own)})
            made.append(new)
    for user in list(node.users):
        user.args = places[nodes.item(user)]
    graph.erase_node(node)
    return made


def _of_part(node: fx.Node, part: Sequence[int]) -> tuple[Any, tuple[Argument, ...]]:
    """The target and the arguments of ``node`` for some of its rows."""
    whole = node.target
    if not isinstance(whole, Each):
        return whole, tuple(_rows(argument, part) for argument in node.args)
    columns = [_rows(column, part) for column in nodes.sequence(node.args[0])]
    owners = [whole.rows[row] for row in part]
    return Each(whole.__name__, whole.body, owners, whole.columns), (columns, node.args[1])


def _rows(argument: Argument, part: Sequence[int]) -> Argument:
    """Those elements of a column; an argument that is none, or an empty one, as it is."""
    if not isinstance(argument, (list, tuple)) or not argument:
        return argument
    return [argument[row] for row in part]
