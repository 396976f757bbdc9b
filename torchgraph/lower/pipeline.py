"""The lowering pipeline, from a program to its executable.

    split → halve → cut → plan → in place → verify → write

A step that accumulates gradients is split into three parts, and each of them is lowered. A part
for a CUDA Graph is halved. What Inductor compiles is cut into regions. Memory is planned where an
option asks for it; else the program is written in place as it stands. What comes of that is
verified, and written as one Python function.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from ..ir.program import Program
from ..options.options import Options
from .agreements import communicates, with_agreements
from .halves.halves import Halves, halve
from .inplace.reinplace import reinplace
from .inplace.verify import verify_lowered
from .lowered import Lowered
from .memory.planning import MemoryPlan, plan
from .plan import PARTS, Plan
from .raising import mark
from .regions.cut import cut
from .regions.region import Region
from .split import split
from .variants import variant
from .write.around import Labels
from .write.executable import Executable
from .write.step import write


@dataclass(frozen=True)
class Target:
    """The lowering target of a program: by default, Python over ATen ops."""

    options: Options = field(default_factory=Options)
    """The options of memory planning, where nothing is compiled, and of verification."""
    compiled: bool = False
    """Most ops are calls of regions, which have to be compiled before the first run."""
    eager_draws: bool = True
    """Compiled code draws the random numbers of eager."""
    halved_for: torch.device | None = None
    """The device whose half is to be replayed as a CUDA Graph; None: nothing is halved."""


class Lowering(NamedTuple):
    """The result of lowering a program."""

    runs: Lowered
    regions: list[Region]
    """The regions that `runs` calls besides ops; empty where nothing is compiled."""


ATEN = Target()


def lower(program: Program, name: str, target: Target = ATEN) -> Lowering:
    """Lower ``program`` to one executable, or to the plan of a step that accumulates gradients.

    Args:
        name: shown in tracebacks.

    Raises:
        NotSupported: the step cannot be split into micro-batches and an update.
        VerifyError: the lowered program breaks a rule of `Stage.LOWERED`.
    """
    agreed = with_agreements if communicates(program) else _alone
    if program.signature.micro_batches == 1:
        return _lower_part(agreed(program), name, 0, target)
    parts = [
        _lower_part(agreed(part), f"{name}, {what}", number, target)
        for number, (part, what) in enumerate(zip(split(program), PARTS, strict=True))
    ]
    first, following, update = (part.runs for part in parts)
    regions = [region for part in parts for region in part.regions]
    return Lowering(Plan(first, following, update, program.signature, program), regions)


def _alone(program: Program) -> Program:
    """Return ``program`` unchanged: it communicates with no other rank."""
    return program


def _lower_part(program: Program, name: str, number: int, target: Target) -> Lowering:
    if target.halved_for is None:
        return Lowering(*_lower_whole(program, name, number, target))
    halved = halve(program, target.halved_for)
    device, regions = _lower_whole(halved.device, name, number, target)
    plain = Target(Options(passes=target.options.passes))
    host, _ = _lower_whole(halved.host, f"{name}, numbers", number, plain)
    halves: Lowered = Halves.of(halved, host, device)
    if target.options.profiler_labels:  # a capture takes no other function later
        halves = variant(halves, "labelled", Labels)
    return Lowering(halves, regions)


def _lower_whole(
    program: Program, name: str, number: int, target: Target
) -> tuple[Executable, list[Region]]:
    regions: list[Region] = []
    memory = MemoryPlan()
    mark(program)
    if target.compiled:
        program, regions = cut(program, number, eager_draws=target.eager_draws)
    if target.options.plans_memory and not target.compiled:
        lowered, memory = plan(program, target.options)
    else:
        lowered = reinplace(program)
    verify_lowered(program, lowered, strict=target.options.passes.verify == "strict")
    return write(lowered, name, memory), regions
