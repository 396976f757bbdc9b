"""Values of one run of a program, by the captured node that each belongs to."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ..ir import effects
from ..ir.program import OutputSpec, Program, identity
from ..lower import Region
from .run import walk

Values = Sequence[Any]


@dataclass
class Seen:
    """A value, and the node that computed it."""

    value: Any
    node: fx.Node | None
    """None for what leaves a compiled region."""
    region: str = ""


@dataclass
class Trace:
    """The values of one run of a program."""

    seen: dict[str, Seen] = field(default_factory=dict)
    """By the name of the captured node; see `identity`."""
    others: dict[fx.Node, Any] = field(default_factory=dict)
    """Values that stand for no captured node's; none of a program that writes in place."""
    results: tuple[Any, ...] = ()


def region_of(node: fx.Node) -> Region | None:
    """The compiled region that computes ``node``, a call or one of its results."""
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node.target if isinstance(node.target, Region) else None


def traced(
    program: Program, outputs: Sequence[OutputSpec], values: Values, *, in_place: bool = False
) -> Trace:
    """Run a program, op by op, over ``values``, which an in-place one writes.

    Args:
        outputs: what it returns.
    """
    trace = Trace()

    def after(node: fx.Node, value: Any) -> Any:
        if node.op != "call_function" or effects.of(node).expects:
            return value
        if isinstance(node.target, Region):
            for crossing, one in zip(node.target.crossings, value, strict=False):
                if crossing.identity:
                    seen = Seen(one.clone(), None, node.target.__name__)
                    trace.seen.setdefault(crossing.identity, seen)
        elif identity(node) and region_of(node) is None:
            kept = value
            if in_place and isinstance(value, torch.Tensor):
                kept = value.detach().clone()  # what is written later shall not change it
            trace.seen.setdefault(identity(node), Seen(kept, node))
        elif not in_place:
            trace.others[node] = value
        return value

    trace.results = walk(program, values, after, outputs=outputs)
    return trace
