"""Each: one computation, done for each of several parameters by a single node.

An optimizer does the same to parameter after parameter. The node takes columns (parameters,
gradients, slots), of which each row goes through one small program, the body, together with values
that all rows share; it returns the new values of what a row writes.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard, TypeVar

import torch
from torch import fx
from torch.fx.node import Argument

from .._torch import FakeTensor, FakeTensorMode, fake_like, has_numbers, known_values
from .._torch.graphs import rename
from . import nodes
from .aliasing import alias_sources, has_strides
from .effects import Effects
from .names import module_of
from .program import OutputKind, Program, provenance
from .values import evaluate, mode_of, neutral, with_values

Element = TypeVar("Element")
_ITEM = torch.ops.aten._local_scalar_dense.default


class Each:
    """The target of a node that computes for many rows: ``each(columns, shared)``.

    ``columns`` are lists with one value for each row, ``shared`` is a list. Returned is one list:
    for each output of the body its value for each row. What the step keeps besides states comes
    first, then the new values of the columns that the body updates.
    """

    effects = Effects()

    def __init__(self, name: str, body: Program, rows: Sequence[str], columns: int) -> None:
        """``body`` takes ``columns`` values of a row, followed by the shared ones.

        ``rows`` are the parameters' names.
        """
        self.__name__ = name
        self.columns = columns
        self.body = body
        self.rows = tuple(rows)
        fqns = [spec.fqn for spec in body.signature.inputs]
        updates = [o for o in body.signature.outputs if o.kind is OutputKind.UPDATE]
        self.written = tuple(fqns.index(out.target) for out in updates)
        """The columns that it updates."""
        self.kept = (len(body.signature.outputs) - len(updates)) * len(self.rows)
        """The number of results that are no new values of columns."""

    def __str__(self) -> str:
        return self.__name__

    def __call__(
        self, columns: Sequence[Sequence[object]], shared: Sequence[object]
    ) -> list[object]:
        results = [run(self.body, [*row, *shared]) for row in zip(*columns, strict=True)]
        return by_output(results)

    def inner(self) -> list[fx.Node]:
        """The nodes of the body, which run once for each row."""
        return list(self.body.nodes)

    def outputs(self) -> list[str]:
        """The names of a row's outputs; a column's name stands for its new value."""
        kept = [f"kept_{number}" for number in range(self.kept // len(self.rows))]
        return [*kept, *(self.body.placeholders[column].name for column in self.written)]

    def updates(self, columns: Sequence[Sequence[Element]]) -> list[Element]:
        """The elements of the written columns, in the order of the results."""
        return [item for column in self.written for item in columns[column]]


def run(program: Program, values: Sequence[object]) -> tuple[object, ...]:
    """The program, op by op, over real tensors or fake ones.

    A number that is read from a fake tensor is what it was in the recorded step.
    """
    found: dict[fx.Node, Any] = dict(zip(program.placeholders, values, strict=True))
    for node in program.nodes:
        if node.op != "call_function":
            continue
        args = fx.map_arg(node.args, found.__getitem__)
        kwargs = fx.map_arg(node.kwargs, found.__getitem__)
        if has_numbers((args, kwargs)):
            args, kwargs = known_values(args), known_values(kwargs)
        if node.target is _ITEM and isinstance(args[0], FakeTensor):
            found[node] = known_values(node.meta["val"])
        else:
            found[node] = node.target(*args, **kwargs)  # type: ignore[operator]  # an op
    results: tuple[object, ...] = fx.map_arg(program.results, found.__getitem__)
    return tuple(results)


def by_output(rows: Sequence[Sequence[Element]]) -> list[Element]:
    """The results of all rows, those of one output after the other."""
    return [value for output in zip(*rows, strict=True) for value in output]


def is_each(node: object) -> TypeGuard[fx.Node]:
    """True for a node that computes for several rows."""
    return isinstance(node, fx.Node) and isinstance(node.target, Each)


def each_of(node: fx.Node) -> Each:
    """The `Each` that a node calls."""
    assert isinstance(node.target, Each)
    return node.target


def is_item(node: object) -> TypeGuard[fx.Node]:
    """True for a result of an `Each` node, or of an op over lists of tensors."""
    if not isinstance(node, fx.Node) or node.target is not operator.getitem:
        return False
    return is_each(node.args[0]) or nodes.is_over_lists(node.args[0])


def calls(program: Program) -> Iterator[tuple[fx.Node, int]]:
    """The calls of a program, those of a body in place of its node, and how often each is done."""
    for node in program.nodes:
        body = getattr(node.target, "body", None)
        if isinstance(body, Program):
            rows = getattr(node.target, "rows", ())
            yield from ((inner, len(rows)) for inner, _ in calls(body))
        elif node.op == "call_function":
            yield node, 1


def rows_of(node: fx.Node) -> Iterator[tuple[fx.Node, ...]]:
    """The column values of each row of an `Each` node."""
    return zip(*map(nodes.all_nodes, nodes.sequence(node.args[0])), strict=True)


def columns_of(
    node: fx.Node,
) -> tuple[dict[fx.Node, list[fx.Node]], dict[fx.Node, Argument]]:
    """The inputs of the body, each with its column or its shared value."""
    each = each_of(node)
    inputs = each.body.placeholders
    columns = map(nodes.all_nodes, nodes.sequence(node.args[0]))
    shared = nodes.sequence(node.args[1])
    return (
        dict(zip(inputs[: each.columns], columns, strict=True)),
        dict(zip(inputs[each.columns :], shared, strict=True)),
    )


def expanded(program: Program) -> Program:
    """A copy in which the ops of each row are nodes of their own; without rows the program itself.

    For passes that look at the update of one parameter, and for what compiles or reorders it.
    """
    if not any(map(is_each, program.nodes)):
        return program
    found = program.copy()
    with neutral():
        mode = mode_of(found)
        for node in list(found.nodes):
            if is_each(node):
                _expand(found.gm.graph, node, mode)
    return found


def _expand(graph: fx.Graph, node: fx.Node, mode: FakeTensorMode) -> None:
    each = each_of(node)
    shared = nodes.sequence(node.args[1])
    results: list[list[Any]] = []
    known: dict[Hashable, dict[fx.Node, Any]] = {}
    """The fake values of the first row of each layout."""
    with graph.inserting_before(node):
        for number, (owner, row) in enumerate(zip(each.rows, rows_of(node), strict=True)):
            made: dict[fx.Node, Any] = dict(
                zip(each.body.placeholders, (*row, *shared), strict=True)
            )
            layouts = _layouts(row)
            fakes = {} if layouts is None else known.setdefault(layouts, {})
            for inner in each.body.nodes:
                if inner.op == "call_function":
                    new = _copy(graph, inner, made, f"{node.name}_{number}", owner)
                    _give_value(new, inner, fakes, mode)
                    made[inner] = new
            results.append([made[result] for result in each.body.results])
    values = by_output(results)
    nodes.replace_all(graph, {item: values[nodes.item(item)] for item in node.users})
    graph.erase_node(node)


def _layouts(row: Sequence[fx.Node]) -> Hashable | None:
    """What the fake values of a row's ops follow from; None where sizes are symbolic."""
    found = []
    for node in row:
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor) or not has_strides(value):
            return None
        sizes = (*value.shape, *value.stride())
        if any(type(size) is not int for size in sizes):
            return None
        found.append((sizes, value.dtype, value.device))
    return tuple(found)


def _copy(
    graph: fx.Graph, inner: fx.Node, made: Mapping[fx.Node, Any], prefix: str, owner: str
) -> fx.Node:
    new = nodes.copy(graph, inner, made.__getitem__)
    rename(new, f"{prefix}_{inner.name}")
    origin = provenance(inner)
    new.meta["provenance"] = replace(origin, module=module_of(owner))
    return new


def _give_value(
    new: fx.Node, inner: fx.Node, known: dict[fx.Node, Any], mode: FakeTensorMode
) -> None:
    """Give the op of a row its fake value: one like that of an equal row, or evaluated.

    A fake kernel takes twenty times as long. A view is in the memory of what it is a view of.
    """
    if not isinstance(inner.meta["val"], (torch.Tensor, list, tuple)):
        return
    value = known.get(inner)
    if isinstance(value, torch.Tensor) and not alias_sources(inner):
        new.meta["val"] = fake_like(mode, value)
        return
    value = evaluate(mode, new.target, *with_values((new.args, dict(new.kwargs))))
    new.meta["val"] = known[inner] = value
