"""Which order, which in-place forms: the lowered program with the least peak of those tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..aliasing import refresh_views
from ..options import Options
from ..program import Program
from ..verify import Promises, Stage, verify, verify_promises
from . import saved
from .lifetimes import Lifetimes, peak
from .order import orders
from .reinplace import reinplace


@dataclass(frozen=True)
class Tried:
    """An order that was tried, and the peak of the program that it was lowered to."""

    name: str
    peak: int


@dataclass(frozen=True)
class MemoryPlan:
    """How the memory of a lowered program was planned. Bytes leave out states and inputs."""

    mode: str = "Disable"
    order: str = "the program's own"
    note: str = ""
    """Why the mode cannot matter."""
    tried: tuple[Tried, ...] = ()


class Planned(NamedTuple):
    """A lowered program and how it came about."""

    program: Program
    memory: MemoryPlan


class _Candidate(NamedTuple):
    name: str
    program: Program
    peak: int


def plan(program: Program, options: Options) -> Planned:
    """Lower a functional program; with memory options, in the best of several ways."""
    if not options.plans_memory:
        return Planned(reinplace(program), MemoryPlan())
    program = program.copy()
    refresh_views(program)
    offer = orders(program, options.straighten)
    promises = Promises.of(program)
    found: list[_Candidate] = []
    for name, ordered in offer.orders:
        verify(ordered, Stage.OPTIMIZED, made_by=name)
        verify_promises(promises, ordered, made_by=name)
        found += _lowered(name, ordered, options)
    best = min(found, key=lambda one: one.peak)  # of equals the first: the least changed
    tried = tuple(Tried(one.name, one.peak) for one in found)
    return Planned(best.program, MemoryPlan(options.straighten, best.name, offer.note, tried))


def _lowered(name: str, program: Program, options: Options) -> Iterator[_Candidate]:
    lowered = reinplace(program, over_arguments=options.compress_memory)
    yield _Candidate(name, lowered, peak(Lifetimes(lowered)))
    if not options.compress_memory:
        return
    program = program.copy()
    if saved.read_results(program):
        lowered = reinplace(program, over_arguments=True)
        yield _Candidate(f"{name}, results read", lowered, peak(Lifetimes(lowered)))
    if saved.compute_again(program):
        lowered = reinplace(program, over_arguments=True)
        yield _Candidate(f"{name}, computed again", lowered, peak(Lifetimes(lowered)))
