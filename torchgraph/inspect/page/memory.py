"""The planned memory of a step over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...costs.owners import own_module
from ...ir.program import Program, provenance
from ...lower.lifetimes import Allocation, Lifetimes, live_bytes
from ...lower.memory.arena import Arena
from ...lower.plan import PARTS
from ..peaks import accumulated
from .ops import PHASES
from .source import Programs

ARENA, SUMS = "arena", "summed gradients"
KINDS = (*(phase.value for phase in PHASES), ARENA, SUMS)
"""What takes memory: results by the phase of their op, the arena, sums over micro-batches."""
_POINTS = 800
_SHOWN = 20


@dataclass(frozen=True)
class Moment:
    """Bytes that are allocated while one op runs, by kind."""

    part: str
    position: int
    """Its place among the nodes of its part."""
    node: str
    module: str
    taken: tuple[int, ...]
    """One for each of `KINDS`."""

    @property
    def total(self) -> int:
        """The sum over all kinds."""
        return sum(self.taken)


@dataclass(frozen=True)
class OverTime:
    """The moments of a step in the order of its ops."""

    moments: tuple[Moment, ...]
    peak: int
    """Bytes at the most, without what kernels take for themselves."""
    at_peak: tuple[Allocation, ...]
    """The largest values that are alive then."""

    def points(self) -> list[tuple[int, Moment]]:
        """At most `_POINTS` moments with their numbers: the largest of each range."""
        width = -(-len(self.moments) // _POINTS) or 1
        numbered = list(enumerate(self.moments))
        rows = (numbered[at : at + width] for at in range(0, len(numbered), width))
        return [max(row, key=lambda one: one[1].total) for row in rows]


def over_time(programs: Programs) -> OverTime:
    """The memory of all parts of a step, one after the other, with one following micro-batch."""
    several = len(programs.lowered) == len(PARTS)
    moments: list[Moment] = []
    peak, at_peak = 0, tuple[Allocation, ...]()
    for number, program in enumerate(programs.lowered):
        lifetimes = Lifetimes(program)
        arena = programs.plans[number].arena if programs.plans else Arena()
        values = [value for value in lifetimes.values if value.node not in arena.offsets]
        found = list(_moments(PARTS[number] if several else "", program, values, arena))
        moments += found
        most = max(found, key=lambda one: one.total, default=None)
        if most is not None and most.total > peak:
            peak, at_peak = most.total, _alive(values, most.position)
    return OverTime(tuple(moments), peak, at_peak)


def _moments(
    part: str, program: Program, values: Sequence[Allocation], arena: Arena
) -> Iterator[Moment]:
    nodes = list(program.nodes)
    by_phase = [
        live_bytes([v for v in values if provenance(v.node).phase is phase], len(nodes))
        for phase in PHASES
    ]
    sums = accumulated(program)
    for position, (node, *taken) in enumerate(zip(nodes, *by_phase, strict=True)):
        if node.op != "call_function":
            continue
        module = own_module(node)
        yield Moment(part, position, str(node.name), module, (*taken, arena.nbytes, sums))


def _alive(values: Sequence[Allocation], position: int) -> tuple[Allocation, ...]:
    alive = [value for value in values if value.born <= position <= value.dies]
    alive.sort(key=lambda value: -value.nbytes)
    return tuple(alive[:_SHOWN])
