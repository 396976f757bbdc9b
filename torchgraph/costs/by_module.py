"""What the modules take, by phase: FLOPs, bytes moved and calls, and what they keep."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from torch import fx

from ..ir.each import each_of, is_each, rows_of
from ..ir.names import module_of
from ..ir.program import Phase, Program, provenance
from .activations import kept_by_node
from .op_calls import Work, work_by_node
from .traffic import elements

ByModule = defaultdict[str, dict[Phase, Work]]
"""By module path and phase; what is of no module under the empty path."""


def work_by_module(program: Program) -> ByModule:
    """One step, all micro-batches counted. The update of a parameter is its module's."""
    found: ByModule = defaultdict(dict)
    for node, work in work_by_node(program).items():
        phase = provenance(node).phase
        for module, share in _shares(node, work):
            phases = found[module]
            phases[phase] = phases.get(phase, Work()) + share
    return found


def kept_by_module(program: Program) -> dict[str, int]:
    """Bytes that the forward part of each module leaves for the backward part, per micro-batch."""
    found: dict[str, int] = {}
    for node, size in kept_by_node(program).items():
        module = provenance(node).module
        found[module] = found.get(module, 0) + size
    return found


def sizes_of_rows(node: fx.Node) -> Iterator[tuple[str, int]]:
    """(module path, elements) of each row of a node over rows."""
    for owner, row in zip(each_of(node).rows, rows_of(node), strict=True):
        yield module_of(owner), sum(map(elements, row))


def _shares(node: fx.Node, work: Work) -> Iterator[tuple[str, Work]]:
    """The work of a node by module: of one over rows, that of each row by its elements."""
    if not is_each(node):
        yield provenance(node).module, work
        return
    rows = list(sizes_of_rows(node))
    total, before = max(1, sum(size for _, size in rows)), 0
    done = Work()
    for number, (module, size) in enumerate(rows, start=1):
        before += size
        until = Work(
            work.flops * before // total,
            work.bytes * before // total,
            work.launches * number // len(rows),
        )
        yield (
            module,
            Work(
                until.flops - done.flops,
                until.bytes - done.bytes,
                until.launches - done.launches,
            ),
        )
        done = until
