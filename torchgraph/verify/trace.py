"""Values of one run of a program, by the captured node that each belongs to."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ..ir import effects
from ..ir.ops import wait_for_collective
from ..ir.program import SKIPPED_BY, OutputKind, OutputSpec, Program, identity
from ..lower import Region

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


class _Tracer(fx.Interpreter):
    def __init__(self, program: Program, outputs: Sequence[OutputSpec], *, in_place: bool) -> None:
        super().__init__(program.gm)
        self.trace = Trace()
        pairs = zip(outputs, program.results, strict=True)
        self._flags = {out.target: value for out, value in pairs if out.kind is OutputKind.SKIP}
        self._in_place = in_place

    def run_node(self, n: fx.Node) -> Any:
        if SKIPPED_BY in n.meta and self.env[self._flags[n.meta[SKIPPED_BY]]]:
            return None
        value = wait_for_collective(n, super().run_node(n))
        if n.op != "call_function" or effects.of(n).expects:
            return value
        if isinstance(n.target, Region):
            for crossing, one in zip(n.target.crossings, value, strict=False):
                if crossing.identity:
                    seen = Seen(one.clone(), None, n.target.__name__)
                    self.trace.seen.setdefault(crossing.identity, seen)
        elif identity(n) and region_of(n) is None:
            kept = value
            if self._in_place and isinstance(value, torch.Tensor):
                kept = value.detach().clone()  # what is written later shall not change it
            self.trace.seen.setdefault(identity(n), Seen(kept, n))
        elif not self._in_place:
            self.trace.others[n] = value
        return value


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
    tracer = _Tracer(program, outputs, in_place=in_place)
    tracer.trace.results = tuple(tracer.run(*values, enable_io_processing=False))
    return tracer.trace


def ends_of(
    trace: Trace, outputs: Sequence[OutputSpec], states: Mapping[OutputSpec, Any]
) -> dict[OutputSpec, Any]:
    """The value of each output.

    Args:
        states: what inputs hold after a program that writes in place; empty for another.
    """
    return {**states, **dict(zip(outputs, trace.results, strict=True))}
