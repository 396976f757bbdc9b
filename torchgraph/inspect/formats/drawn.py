"""Data of exported files: calls on a timeline, and a program with its functions."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import SourceLine
from ...ir.program import Phase, Program
from ...lower import Executable, Halves, Lowered, Plan
from ...pipeline.pipelined import Pipelined
from ...replay.cuda.cuda_graph import CudaGraph


@dataclass(frozen=True)
class Origin:
    """A node of a program, by name, and where it comes from."""

    node: str
    """Its name in the program; of one that lowering made, its own."""
    op: str
    phase: Phase
    module: str
    """Its module's path; empty for what several share."""
    line: SourceLine | None
    """The user's line that it comes from."""


@dataclass(frozen=True)
class Slice(Origin):
    """A call on a timeline, in seconds since the step began."""

    start: float
    seconds: float
    flops: int
    bytes: int


@dataclass(frozen=True)
class Drawn:
    """A program, and the functions of a step in the order in which they run."""

    program: Program
    functions: tuple[Executable, ...]
    """One that runs for several micro-batches is there so often."""

    @classmethod
    def of(cls, program: Program, lowered: Lowered) -> Drawn:
        """The functions of ``lowered``, which was made of ``program``."""
        return cls(program, tuple(in_order(lowered)))


def in_order(lowered: Lowered) -> list[Executable]:
    """The functions of a step in the order in which they run, one that runs more often so often."""
    if isinstance(lowered, Executable):
        return [lowered]
    if isinstance(lowered, Plan):
        first, following, update = map(in_order, lowered.executables)
        return [*first, *following * (lowered.signature.micro_batches - 1), *update]
    if isinstance(lowered, CudaGraph):
        return in_order(lowered.halves)
    if isinstance(lowered, Pipelined):
        return [one for part in lowered.in_order() for one in in_order(part)]
    assert isinstance(lowered, Halves), "no other way to run a step is known"
    return list(lowered.executables)
