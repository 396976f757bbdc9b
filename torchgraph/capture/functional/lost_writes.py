"""Writes that `torch.func.functionalize` translates wrongly, for which no program is made.

Elements outside of all windows of ``unfold`` become zero. Of lists in which one item lies in the
memory of another, what was written for the first is lost. ``sum(x, out=y)`` adds in the dtype of
``x`` and not in that of ``y``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import fx

from ..._torch import OpOverload, schema_of, storage_id
from ...ir import effects
from ...ir.aliasing import alias_sources, span
from ...ir.program import provenance

aten = torch.ops.aten


class LostWrite(Exception):
    """Names the op that writes, and the user's line. The step runs in eager."""

    def __init__(self, node: fx.Node, what: str) -> None:
        line = provenance(node).line
        super().__init__(f"{node.target} {what}{f' (at {line})' if line else ''}")


def refuse(graph: fx.Graph) -> None:
    """Search a recording for writes that functionalization would lose.

    Raises:
        LostWrite: it writes in a way that would not be followed.
    """
    for node in graph.nodes:
        op = node.target
        if node.op != "call_function" or not isinstance(op, OpOverload):
            continue
        if not schema_of(op).is_mutable or op.namespace != "aten":
            continue
        written = [one for one in effects.written_values(op, node.args) if _is_tensor(one)]
        sources = (source for one in written for source in _sources(one))
        if any(source.target is aten.unfold.default for source in sources):
            raise LostWrite(node, "writes a view that unfold() gave")
        if reads_what_it_wrote(node, op):
            raise LostWrite(node, "reads or writes what it has written for an earlier tensor")
        if _computes_as_out(node, op):
            raise LostWrite(node, "computes in the dtype of out=")


def reads_what_it_wrote(node: fx.Node, op: OpOverload) -> bool:
    """True for an op over lists that writes an item, and then reads its memory for another."""
    lists = [argument for argument in node.args if isinstance(argument, (list, tuple))]
    if max(map(len, lists), default=0) < 2:
        return False
    written = set(effects.written_values(op, node.args))
    pieces: dict[int, list[tuple[int, int, int, bool]]] = {}
    for argument in node.args:
        items = argument if isinstance(argument, (list, tuple)) else [argument]
        for number, item in enumerate(items):
            if _is_tensor(item):
                storage, start, end = _place(item)
                number = number if items is argument else -1
                pieces.setdefault(storage, []).append((start, end, number, item in written))
    return any(map(_interfere, pieces.values()))


def _interfere(shared: list[tuple[int, int, int, bool]]) -> bool:
    """True where two pieces of memory (start, end, item, written) overlap, of several items."""
    shared.sort()
    for position, (_, end, number, writes) in enumerate(shared):
        for start, _, other, other_writes in islice(shared, position + 1, None):
            if start >= end:
                break
            if number != other and (writes or other_writes):
                return True
    return False


def _place(node: object) -> tuple[int, int, int]:
    return storage_id(_value(node)), *span(_value(node))


def _computes_as_out(node: fx.Node, op: OpOverload) -> bool:
    arguments = schema_of(op).arguments
    outs = [node.kwargs.get(argument.name) for argument in arguments if argument.is_out]
    chooses = any(argument.name == "dtype" for argument in arguments)
    if not outs or not chooses or not _is_tensor(node.args[0]):
        return False
    return any(_is_tensor(out) and _value(out).dtype != _value(node.args[0]).dtype for out in outs)


def _sources(node: fx.Node) -> Iterator[fx.Node]:
    """The views that a tensor is a view of, and the tensor itself."""
    yield node
    for source in alias_sources(node):
        yield from _sources(source)


def _is_tensor(value: object) -> bool:
    return isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)


def _value(node: Any) -> torch.Tensor:
    value: torch.Tensor = node.meta["val"]
    return value
