"""The figures of the modules of a Graph: ops, FLOPs, bytes, time, by phase; what passes made."""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ..costs.by_module import kept_by_module, seconds_by_module, work_by_module
from ..costs.owners import Owners
from ..ir.program import Phase, Program, provenance
from .modules import ModuleForest
from .operators import op_name, phase_counts

Made = Counter[tuple[str, str]]
"""By the names of a pass and of an op, how many nodes."""


@dataclass
class Figures:
    """The figures of a module in one phase of one step."""

    ops: int = 0
    """Calls of ops that compute, of all micro-batches; views are none."""
    flops: int = 0
    """FLOPs of products, a multiply-add as two."""
    moved: int = 0
    """Bytes read and written."""
    kept: int = 0
    """Bytes that the forward part leaves for the backward part, of one micro-batch."""
    seconds: float = 0.0

    def add(self, other: Figures) -> None:
        """Count another module's, too."""
        self.ops += other.ops
        self.flops += other.flops
        self.moved += other.moved
        self.kept += other.kept
        self.seconds += other.seconds


@dataclass
class Totals:
    """The figures of one module, or of several, in all phases."""

    phases: dict[Phase, Figures] = field(default_factory=dict)
    made: Made = field(default_factory=Counter)
    """The ops that passes made."""
    nodes: int = 0
    """Nodes of the forward and the backward part that are ops."""
    captured: int = 0
    """The number of nodes before the passes."""

    def add(self, other: Totals) -> None:
        """Count another module's, too."""
        for phase, figures in other.phases.items():
            self.phases.setdefault(phase, Figures()).add(figures)
        self.made.update(other.made)
        self.nodes += other.nodes
        self.captured += other.captured


def totals_of(
    program: Program,
    captured: Program | None,
    seconds: Mapping[str, float] | None,
    forest: ModuleForest,
    besides: Mapping[tuple[str, Phase], float] | None = None,
) -> defaultdict[str, Totals]:
    """The figures of each module by path, without its sub-modules; the rest under ``""``.

    Args:
        captured: the program before its passes.
        seconds: measured, by node of the program.
        besides: measured, by module and phase, of nodes that lowering made.
    """
    found: defaultdict[str, Totals] = defaultdict(Totals)
    figures = figures_of(program, seconds or {}, forest.place, besides or {})
    found.update((path, Totals(phases)) for path, phases in figures.items())
    owners = Owners(program)
    passes = {record.name for record in program.history}
    for node in program.nodes:
        origin = provenance(node)
        is_op = node.op == "call_function" and node.target is not operator.getitem
        if is_op and origin.made_by in passes:
            made = found[forest.place(owners.module(node))].made
            made[origin.made_by, op_name(node.target)] += 1
    for path, count in _nodes(program, forest).items():
        found[path].nodes += count
    for path, count in _nodes(captured, forest).items() if captured is not None else ():
        found[path].captured += count
    return found


def figures_of(
    program: Program,
    seconds: Mapping[str, float],
    place: Callable[[str], str],
    besides: Mapping[tuple[str, Phase], float],
) -> dict[str, dict[Phase, Figures]]:
    """The figures of each module in each phase; what is of none under the empty path.

    ``place`` gives the module of the tree that a module path of the program belongs to.
    """
    found: defaultdict[str, dict[Phase, Figures]] = defaultdict(dict)
    for module, phase, figures in (*_figures(program, seconds), *_times(besides)):
        found[place(module)].setdefault(phase, Figures()).add(figures)
    return found


def _nodes(program: Program, forest: ModuleForest) -> dict[str, int]:
    """Op nodes by module path, without the update's, which count by parameter or once for all."""
    found = phase_counts(program, forest.place)
    return {path: counts.total() - counts[Phase.UPDATE] for path, counts in found.items()}


def _figures(
    program: Program, seconds: Mapping[str, float]
) -> Iterator[tuple[str, Phase, Figures]]:
    for module, phases in work_by_module(program).items():
        for phase, work in phases.items():
            yield module, phase, Figures(work.launches, work.flops, work.bytes)
    for module, size in kept_by_module(program).items():
        yield module, Phase.FORWARD, Figures(kept=size)
    yield from _times(seconds_by_module(program, seconds))


def _times(seconds: Mapping[tuple[str, Phase], float]) -> Iterator[tuple[str, Phase, Figures]]:
    for (module, phase), taken in seconds.items():
        yield module, phase, Figures(seconds=taken)


def sum_of(parts: Iterable[Totals]) -> Totals:
    """The sum of several modules' figures."""
    whole = Totals()
    for part in parts:
        whole.add(part)
    return whole
