"""Choice of node order and in-place forms: the lowered program of least peak among those tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import fx

from ...ir.aliasing import refresh_views
from ...ir.program import Program
from ...ir.verify import Promises, Stage, verify, verify_promises
from ...options.options import Options
from ..inplace.reinplace import reinplace
from ..lifetimes import Lifetimes, live_bytes, most, peak
from . import saved
from .arena import Arena, lay_out
from .losses import join_losses
from .order import orders
from .workspace import workspaces


@dataclass(frozen=True)
class Tried:
    """An order that was tried, and the peak of the program that it was lowered to."""

    name: str
    peak: int


@dataclass(frozen=True)
class MemoryPlan:
    """The memory plan of a lowered program. Bytes leave out states and inputs."""

    mode: str = "Disable"
    order: str = "the program's own"
    note: str = ""
    """Why the mode cannot matter."""
    tried: tuple[Tried, ...] = ()
    arena: Arena = field(default_factory=Arena)
    """Empty without one."""


class Planned(NamedTuple):
    """A lowered program and how it came about."""

    program: Program
    memory: MemoryPlan


class _Candidate(NamedTuple):
    name: str
    program: Program
    peak: int


def plan(program: Program, options: Options) -> Planned:
    """The best of several ways to write a functional program in place, as options ask for it."""
    program = program.copy()
    refresh_views(program)
    offer = orders(program, options.straighten)
    promises = Promises.of(program)
    unplanned = _candidate("the program's own", reinplace(program))
    found = [] if offer.for_speed else [unplanned]
    for name, ordered in offer.orders:
        if ordered is program and not options.compress_memory:
            continue  # the unplanned one
        verify(ordered, Stage.OPTIMIZED, made_by=name, strict=options.passes.verify == "strict")
        verify_promises(promises, ordered, made_by=name)
        found += _lowered(name, ordered, options)
    best = min(found, key=lambda one: one.peak)  # of equals the first: the least changed
    tried = tuple(Tried(one.name, one.peak) for one in found)
    memory = MemoryPlan(options.straighten, best.name, offer.note, tried)
    if options.uses_arena:
        arena = lay_out(
            best.program,
            workspaces(best.program),
            try_all=options.best_memory_allocation,
            improve=options.compress_memory,
            limit=unplanned.peak,
        )
        memory = replace(memory, arena=arena)
    return Planned(best.program, memory)


def _candidate(name: str, lowered: Program) -> _Candidate:
    return _Candidate(name, lowered, peak(Lifetimes(lowered), workspaces(lowered)))


def _lowered(name: str, program: Program, options: Options) -> Iterator[_Candidate]:
    if not options.compress_memory:
        yield _candidate(name, reinplace(program))
        return
    program = program.copy()
    join_losses(program)
    yield _candidate(f"{name}, over arguments", reinplace(program, over_arguments=True))
    if saved.read_results(program):
        yield _candidate(f"{name}, results read", reinplace(program, over_arguments=True))
    if saved.compute_again(program):
        yield _candidate(f"{name}, computed again", reinplace(program, over_arguments=True))


def planned_peak(memory: MemoryPlan, lowered: Program, taken: Mapping[fx.Node, int]) -> int:
    """The most bytes that a run allocates: the arena, what is outside, what kernels take."""
    lifetimes = Lifetimes(lowered)
    outside = [value for value in lifetimes.values if value.node not in memory.arena.offsets]
    live = live_bytes(outside, len(lifetimes.nodes))
    return memory.arena.nbytes + most(live, lifetimes, taken)
