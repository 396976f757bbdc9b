"""Refuses writes that `torch.func.functionalize` would lose.

It takes what ``unsafe_split`` and its kin return for copies. Eager has views, whose writes show in
the whole tensor, and the other way round.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from .. import effects
from .._torch import OpOverload, storage_id
from ..errors import CaptureError
from ..program import provenance

_UNSAFE = frozenset({"aten::unsafe_chunk", "aten::unsafe_split", "aten::unsafe_split_with_sizes"})


def refuse(graph: fx.Graph) -> None:
    """Look through a recording.

    Raises:
        CaptureError: a tensor is written and then read through another view of the same memory,
            where one of the two is part of an unsafe split; or ``as_strided`` reads a part.
    """
    shown: dict[int, list[fx.Node]] = {}  # by storage
    split: set[int] = set()
    order = {node: position for position, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            shown.setdefault(storage_id(value), []).append(node)
            if _is_part(node):
                split.add(storage_id(value))
    for node in graph.nodes if split else ():
        if _name(node) == "aten::as_strided" and _part(node) is not None:
            raise _error(node, "looks past the end of a part of unsafe_split() or unsafe_chunk()")
        for written in _written(node):
            storage = storage_id(written.meta["val"])
            if storage in split and _shows(shown[storage], written, node, order):
                raise _error(
                    node,
                    "writes what a part of unsafe_split() or unsafe_chunk() shows too, and that is "
                    "read later",
                )


def _error(node: fx.Node, what: str) -> CaptureError:
    where = provenance(node).line
    return CaptureError(f"{node.target} {what}.", where=where, fix="use split() or chunk().")


def _shows(others: list[fx.Node], written: fx.Node, at: fx.Node, order: dict[fx.Node, int]) -> bool:
    """True when one of ``others`` shows what is written, was made before and is read after."""
    return any(
        order[other] < order[at]
        and not _are_same_or_apart(_part(other), _part(written))
        and any(order[user] > order[at] for user in other.users)
        for other in others
    )


def _are_same_or_apart(left: fx.Node | None, right: fx.Node | None) -> bool:
    if left is None or right is None:
        return left is right
    return left.args[0] is right.args[0]


def _part(node: fx.Node) -> fx.Node | None:
    """The part that a tensor is or is a view of; None for the whole and its views."""
    own = storage_id(node.meta["val"])
    while not _is_part(node):
        sources = [arg for arg in node.all_input_nodes if _is_in(arg, own)]
        if not sources:
            return None
        node = sources[0]
    return node


def _is_in(node: fx.Node, storage: int) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and storage_id(value) == storage


def _is_part(node: fx.Node) -> bool:
    if node.target is not operator.getitem:
        return False
    source: Any = node.args[0]
    return _name(source) in _UNSAFE


def _name(node: fx.Node) -> str:
    return str(node.target._schema.name) if isinstance(node.target, OpOverload) else ""


def _written(node: fx.Node) -> list[fx.Node]:
    if not isinstance(node.target, OpOverload) or not node.target._schema.is_mutable:
        return []
    values = effects.written_values(node.target, node.args)
    return [one for one in values if isinstance(one, fx.Node) and "val" in one.meta]
