"""Timelines of the calls of a step, as measured and as planned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import fx

from ...lower import Executable, Span
from ..formats.drawn import Slice
from .planned import Planned
from .shares import shares


def measured(run: Sequence[Span], plan: Planned) -> tuple[Slice, ...]:
    """The timeline of the calls of a run, as measured."""
    return tuple(
        slice_ for node, start, end in run for slice_ in _slices(node, start, end - start, plan)
    )


def planned(functions: Iterable[Executable], plan: Planned) -> tuple[Slice, ...]:
    """The timeline of the calls in their order, each as long as its work takes."""
    found: list[Slice] = []
    at = 0.0
    for function in functions:
        for node in function.program.nodes:
            if node.op != "call_function":
                continue
            parts = [one.of.node for one in shares(node, plan)]
            seconds = sum(map(plan.seconds, dict.fromkeys(parts)))
            found += _slices(node, at, seconds, plan)
            at += seconds
    return tuple(found)


def _slices(node: fx.Node, start: float, seconds: float, plan: Planned) -> Iterable[Slice]:
    """The slices of a call: its own, or those of the nodes and rows that share its time."""
    for one in shares(node, plan):
        part, work = seconds * one.part, one.work
        yield Slice(**vars(one.of), start=start, seconds=part, flops=work.flops, bytes=work.bytes)
        start += part
