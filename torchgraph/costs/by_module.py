"""Costs by module and phase: FLOPs, bytes moved, calls, and bytes kept for the backward."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from torch import fx

from ..ir.each import is_each
from ..ir.program import Phase, Program, provenance
from .activations import kept_by_node
from .op_calls import Work, work_by_node
from .owners import Owners

ByModule = defaultdict[str, dict[Phase, Work]]
"""By module path and phase; what is of no module under the empty path."""


def work_by_module(program: Program) -> ByModule:
    """The work of each module in one step, all micro-batches counted; updates included."""
    owners = Owners(program)
    found: ByModule = defaultdict(dict)
    for node, work in work_by_node(program).items():
        phase = provenance(node).phase
        for module, share in _shares(node, work, owners):
            phases = found[module]
            phases[phase] = phases.get(phase, Work()) + share
    return found


def seconds_by_module(
    program: Program, by_node: Mapping[str, float]
) -> dict[tuple[str, Phase], float]:
    """Seconds of each module's nodes in each phase. ``by_node``: seconds by node name."""
    owners = Owners(program)
    found: dict[tuple[str, Phase], float] = {}
    for node in program.nodes:
        for part in owners.parts(node) if node.name in by_node else ():
            key = part.module, provenance(node).phase
            found[key] = found.get(key, 0.0) + by_node[node.name] * part.size
    return found


def kept_by_module(program: Program) -> dict[str, int]:
    """Bytes that the forward part of each module leaves for the backward part, per micro-batch."""
    found: dict[str, int] = {}
    for node, size in kept_by_node(program).items():
        module = provenance(node).module
        found[module] = found.get(module, 0) + size
    return found


def _shares(node: fx.Node, work: Work, owners: Owners) -> Iterator[tuple[str, Work]]:
    """The work of a node by module. One call for several modules' parameters counts for none."""
    parts = owners.parts(node)
    several = len(parts) > 1 and not is_each(node)
    if several:
        yield "", Work(launches=work.launches)
    rows = sum(part.rows for part in parts)
    for part in parts:
        launches = 0 if several else work.launches * part.rows // rows
        yield part.module, replace(work.between(part.begins, part.ends), launches=launches)
