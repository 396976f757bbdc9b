"""New fx nodes, in two thirds of the time: `fx.Graph` searches given arguments for raw symbols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx


def call(graph: fx.Graph, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
    """``graph.call_function(target, args, kwargs)``."""
    node = graph.call_function(target)
    node.args = args
    if kwargs:
        node.kwargs = kwargs
    return node


def copy(graph: fx.Graph, node: fx.Node, argument: Callable[[fx.Node], fx.Node]) -> fx.Node:
    """``graph.node_copy(node, argument)``."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), argument)  # which may make nodes itself
    new = graph.create_node(node.op, node.target, name=node.name, type_expr=node.type)
    new.args = args
    if kwargs:
        new.kwargs = kwargs
    new.meta = node.meta.copy()
    return new
