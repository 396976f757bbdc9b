"""Ops of users that write arguments, before a recording is made functional.

Each becomes its functional form (`library/functional.py`) and a ``copy_`` into each argument that
it wrote: those are followed like any others, into views and states.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from ..._torch import FakeTensorMode, fake_like, schema_of, storage_id
from ...errors import NoProgram
from ...ir import effects, nodes
from ...ir.aliasing import span
from ...ir.program import RECORDED, provenance
from ...library.functional import Form, form_of
from .forms import is_mutable

aten = torch.ops.aten
MOVES = "moves"
"""Key in ``node.meta`` of a ``copy_`` of a value that nothing else reads."""


def split_writes(graph: fx.Graph, mode: FakeTensorMode) -> None:
    """Split each such op of a recording into a call that computes and copies that write.

    Raises:
        NoProgram: an argument that it writes shares memory with another one, or with a result.
    """
    for node in list(graph.nodes):
        if is_mutable(node.target) and effects.of_users(node.target):
            _split(graph, node, form_of(node.target), mode)


def _split(graph: fx.Graph, node: fx.Node, form: Form, mode: FakeTensorMode) -> None:
    written = form.written(node.args, node.kwargs)
    results = _results(node, form)
    _refuse_shared(node, written, results)
    with graph.inserting_before(node):
        new = nodes.call(graph, form.functional, node.args, dict(node.kwargs))
        copies = [fake_like(mode, one.meta["val"]) for one in written]
        value: Any = (*(val for _, val in results), copies) if results else copies
        new.meta.update(val=value, provenance=provenance(node), **{RECORDED: True})
        last = _part(new, len(results)) if results else new
        parts = [_part(last, index) for index in range(len(written))]
        for one, part in zip(written, parts, strict=True):
            copied = graph.call_function(aten.copy_.default, (one, part))
            copied.meta.update(val=one.meta["val"], provenance=provenance(node), **{MOVES: True})
        for index, (old, _) in enumerate(results):
            if old is not None:
                old.replace_all_uses_with(_part(new, index))
    for user in list(node.users):
        graph.erase_node(user)
    graph.erase_node(node)


def _results(node: fx.Node, form: Form) -> list[tuple[fx.Node | None, Any]]:
    """The op's own results: the recorded node of each, if any, and its fake value."""
    value = node.meta.get("val")
    if len(schema_of(form.writing).returns) == 1:
        return [(node, value)] if form.results else []
    parts = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    return [(parts.get(position), value[position]) for position in form.results]


def _part(node: fx.Node, index: int) -> fx.Node:
    part = node.graph.call_function(operator.getitem, (node, index))
    part.meta.update(val=node.meta["val"][index], provenance=provenance(node))
    return part


def _refuse_shared(
    node: fx.Node, written: list[fx.Node], results: list[tuple[fx.Node | None, Any]]
) -> None:
    given: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), given.append)
    for one in written:
        given.remove(one)
    values = [one.meta.get("val") for one in given] + [val for _, val in results]
    pieces = [*_pieces([one.meta["val"] for one in written], True), *_pieces(values, False)]
    for position, (storage, start, end, writes) in enumerate(pieces):
        for other, begin, stop, also in pieces[position + 1 :]:
            if storage == other and begin < end and start < stop and (writes or also):
                raise NoProgram(
                    f"{node.target} writes an argument that shares memory with another one, or "
                    "with what it returns.",
                    where=provenance(node).line,
                    fix="give it a clone() of one of them, and return one.",
                )


def _pieces(values: Any, writes: bool) -> Iterator[tuple[int, int, int, bool]]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _pieces(value, writes)
        elif isinstance(value, torch.Tensor):
            yield storage_id(value), *span(value), writes
