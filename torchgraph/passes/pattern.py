"""Patterns of fx calls, and the matching of nodes against them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten


@dataclass(frozen=True)
class CallPattern:
    """A call of any overload of an op. Its arguments are patterns, in order, and there are no more.

    A pattern is a `CallPattern`, a `Wanted`, or a node or a constant that has to be there.
    """

    op: object
    """The op's packet, such as ``torch.ops.aten.mul``, or a Python function."""
    args: tuple[object, ...]


@dataclass(frozen=True)
class Wanted:
    """A named wildcard: matches any value, the same one at each use; see `Match.values`."""

    name: str


@dataclass
class Match:
    """The values and nodes that a match has bound so far."""

    values: dict[str, Any] = field(default_factory=dict)
    nodes: list[fx.Node] = field(default_factory=list)
    """The calls, each after what it reads."""


def call(op: object, *args: object) -> CallPattern:
    """`CallPattern`, arguments one by one."""
    return CallPattern(op, args)


def match(pattern: object, value: object, found: Match) -> bool:
    """True when ``value`` is what ``pattern`` says; ``found`` then holds all of it."""
    if isinstance(pattern, Wanted):
        known = found.values.setdefault(pattern.name, value)
        return known is value or (not isinstance(value, fx.Node) and bool(known == value))
    if isinstance(pattern, (list, tuple)):
        if not isinstance(value, (list, tuple)) or len(value) != len(pattern):
            return False
        return all(match(one, other, found) for one, other in zip(pattern, value, strict=True))
    if not isinstance(pattern, CallPattern):
        return value is pattern or (not isinstance(value, fx.Node) and bool(value == pattern))
    if not isinstance(value, fx.Node) or value.kwargs or not _calls(value, pattern.op):
        return False
    if not match(pattern.args, value.args, found):
        return False
    if value not in found.nodes:
        found.nodes.append(value)
    return True


def _calls(node: fx.Node, op: object) -> bool:
    return node.target is op or getattr(node.target, "overloadpacket", None) is op


def plain_sum(node: object) -> tuple[fx.Node, fx.Node] | None:
    """The addends of ``add(x, y)`` of two tensors that agree in shape, dtype and device."""
    if not isinstance(node, fx.Node) or node.target is not aten.add.Tensor or node.kwargs:
        return None
    first, second = node.args
    if not (isinstance(first, fx.Node) and isinstance(second, fx.Node)):
        return None
    values = [each.meta["val"] for each in (first, second, node)]
    if not all(isinstance(value, torch.Tensor) for value in values):
        return None
    kinds = {(tuple(value.shape), value.dtype, value.device) for value in values}
    return (first, second) if len(kinds) == 1 else None
