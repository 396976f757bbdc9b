"""The calls of ops that a program makes, each with its FLOPs and the bytes that it moves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import fx

from .. import library
from .._torch import HigherOrderOperator, OpOverload
from ..ir.aliasing import alias_sources
from ..ir.each import each_of, is_each, rows_of
from ..ir.program import Phase, Program, provenance
from .flops import flops_of
from .traffic import elements, traffic

_MARKS = frozenset({library.gradient, library.accumulated, library.before_update})
"""They are gone when the program is lowered."""


@dataclass(frozen=True)
class OpCall:
    """A call of an op, or as many equal ones as there are rows."""

    node: fx.Node
    """The node that calls the op: one of the program, or of the body of one of its nodes."""
    within: fx.Node
    """The node of the program."""
    rows: int
    """The number of calls of the op in one run of the program."""
    bytes: int
    """Read and written by one call, the mean over rows."""

    @property
    def flops(self) -> int:
        """The FLOPs of one call."""
        return flops_of(self.node)

    @property
    def is_view(self) -> bool:
        """True when the result lies in an argument's memory: nothing is moved."""
        return bool(alias_sources(self.node))


@dataclass(frozen=True)
class Work:
    """FLOPs, bytes read and written, and calls of ops that compute, in one step."""

    flops: int = 0
    bytes: int = 0
    launches: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.flops + other.flops,
            self.bytes + other.bytes,
            self.launches + other.launches,
        )

    def between(self, begins: float, ends: float) -> Work:
        """The FLOPs and bytes between two fractions of this work, without its calls."""
        flops, moved = (
            int(whole * ends) - int(whole * begins) for whole in (self.flops, self.bytes)
        )
        return Work(flops, moved)


def op_calls(program: Program) -> Iterator[OpCall]:
    """The calls of ops in the order in which they run, those of a body once."""
    for node in program.nodes:
        if is_each(node):
            yield from _rows(node)
        elif node.op == "call_function" and _is_op(node.target) and node.target not in _MARKS:
            yield OpCall(node, node, 1, traffic(node))


def work_by_node(program: Program) -> dict[fx.Node, Work]:
    """The work of each node in one step, all micro-batches counted; views are left out."""
    found: dict[fx.Node, Work] = {}
    for call in op_calls(program):
        if call.is_view:
            continue
        is_update = provenance(call.within).phase is Phase.UPDATE
        times = call.rows * (1 if is_update else program.signature.micro_batches)
        work = Work(times * call.flops, times * call.bytes, times)
        found[call.within] = found.get(call.within, Work()) + work
    return found


def _rows(node: fx.Node) -> Iterator[OpCall]:
    each = each_of(node)
    body = sum(map(elements, each.body.placeholders[: each.columns]))
    share = sum(elements(item) for row in rows_of(node) for item in row) / max(1, body)
    rows = len(each.rows)
    for inner in each.body.nodes:
        if inner.op == "call_function" and _is_op(inner.target):
            yield OpCall(inner, node, rows, int(traffic(inner) * share / rows))


def _is_op(target: object) -> bool:
    return isinstance(target, (OpOverload, HigherOrderOperator))
