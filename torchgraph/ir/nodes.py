"""New fx nodes, in two thirds of the time: `fx.Graph` searches given arguments for raw symbols."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence

from torch import fx
from torch.fx.node import Argument

from .._torch import OpOverload, schema_of


def call(
    graph: fx.Graph,
    target: Callable[..., object],
    args: tuple[Argument, ...],
    kwargs: dict[str, Argument],
) -> fx.Node:
    """``graph.call_function(target, args, kwargs)``."""
    node = graph.call_function(target)
    node.args = args
    if kwargs:
        node.kwargs = kwargs
    return node


def replace_all(graph: fx.Graph, others: Mapping[fx.Node, fx.Node]) -> None:
    """Let the readers of each key read the other node, and erase the keys.

    Every reader is rewritten once, where ``Node.replace_all_uses_with`` would go through the
    output's thousands of arguments for each key.
    """
    readers = dict.fromkeys(user for node in others for user in node.users)
    for reader in readers:
        args, kwargs = fx.map_arg((reader.args, reader.kwargs), lambda n: others.get(n, n))
        reader.args = args
        if kwargs:
            reader.kwargs = kwargs
    for node in others:
        graph.erase_node(node)


def copy(graph: fx.Graph, node: fx.Node, argument: Callable[[fx.Node], fx.Node]) -> fx.Node:
    """``graph.node_copy(node, argument)``."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), argument)  # which may make nodes itself
    new = graph.create_node(node.op, node.target, name=node.name, type_expr=node.type)
    new.args = args
    if kwargs:
        new.kwargs = kwargs
    new.meta.update(node.meta)  # setting an attribute of a node takes longer
    return new


def op_of(node: fx.Node) -> OpOverload:
    """The op that ``node`` calls; TypeError where it calls anything else."""
    if not isinstance(node.target, OpOverload):
        raise TypeError(f"{node.name} calls {node.target}, which is no op")
    return node.target


def operand(node: fx.Node, place: int = 0) -> fx.Node:
    """The node that ``node`` takes as that argument; TypeError where it takes a constant."""
    return _checked_node(node.args[place])


def operands(node: fx.Node, place: int = 0) -> list[fx.Node]:
    """The nodes of the list that ``node`` takes as that argument; TypeError for other values."""
    return all_nodes(node.args[place])


def all_nodes(argument: Argument) -> list[fx.Node]:
    """The nodes in a list of nodes; TypeError for any other argument."""
    return [_checked_node(item) for item in sequence(argument)]


def sequence(argument: Argument) -> Sequence[Argument]:
    """A list or tuple; TypeError for any other argument."""
    if not isinstance(argument, (list, tuple)):
        raise TypeError(f"{argument!r} is no list")
    return argument


def item(node: fx.Node) -> int:
    """The index of the result that a ``getitem`` node takes."""
    index = node.args[1]
    if not isinstance(index, int):
        raise TypeError(f"{node.name} takes {index!r}, which is no position")
    return index


def whole_of(node: fx.Node) -> fx.Node:
    """The op of which ``node`` takes one of several results; ``node`` itself where it is an op."""
    source = node.args[0] if node.target is operator.getitem else None
    if isinstance(source, fx.Node) and isinstance(source.meta.get("val"), (tuple, list)):
        return source
    return node


def _checked_node(argument: Argument) -> fx.Node:
    if not isinstance(argument, fx.Node):
        raise TypeError(f"{argument!r} is no node")
    return argument


def is_over_lists(node: object) -> bool:
    """True for an op that takes lists of tensors, and returns one list of tensors."""
    op = getattr(node, "target", None)
    return isinstance(op, OpOverload) and _is_over_lists(op)


@functools.cache
def _is_over_lists(op: OpOverload) -> bool:
    schema = schema_of(op)
    returned = [str(result.type) for result in schema.returns]
    taken = [str(argument.type) for argument in schema.arguments[:1]]
    return returned == taken == ["List[Tensor]"]
