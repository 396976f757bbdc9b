"""The peak of a step's memory: planned, measured, and that of eager.

Counted is what a step allocates: results of ops, gradients, outputs, and what kernels take besides.
Not counted is what is there before it: parameters, buffers, optimizer state, arguments, constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.profiler import record_function

from .._torch import below_autograd
from ..ir.copies import copied
from ..ir.program import Program, Role
from ..live.inputs import Call
from ..live.step import Step
from ..lower import Executable, Lowered, Plan
from ..lower.memory.allocations import METHOD, recorded, taken
from ..lower.memory.planning import MemoryPlan, planned_peak
from ..lower.memory.workspace import workspaces
from ..options.options import Options
from ..pipeline.pipelined import Pipelined
from ..record.amp import Autocast
from ..replay.replay import Replay
from ..verify.eager import Eager
from ..verify.start import inputs_of

_STEP = "torchgraph eager step"


@dataclass(frozen=True)
class Peaks:
    """Peaks of allocated bytes of a step; None where not known."""

    planned: int | None = None
    """By the lifetimes of the program's values."""
    workspaces: bool = False
    """True when ``planned`` counts what kernels take for themselves."""
    plans: tuple[MemoryPlan, ...] = ()
    """The plan of each program of the step: one, or three with gradient accumulation."""
    notes: tuple[str, ...] = ()
    measured: int | None = None
    eager: int | None = None
    method: str = ""
    """How the last two were measured."""


def planned(replay: Replay, options: Options, *, probe: bool = False) -> Peaks:
    """Peaks without a run of the step. ``probe``: run kernels to measure their workspace."""
    executable = replay.executable
    if isinstance(executable, Pipelined):
        note = "a pipeline: what its micro-batches in flight hold is not planned"
        return Peaks(None, False, (), (note,))
    plans = tuple(part.memory for part in _parts(executable))
    if not plans:
        note = "a CUDA Graph: torch.cuda.max_memory_allocated says it"
        return Peaks(None, False, plans, (note,))
    if replay.inductor_since is not None:
        note = "Inductor plans its own buffers: the memory options are those of aten"
        return Peaks(None, False, plans, (note,) if options.plans_memory else ())
    notes = [note for note in dict.fromkeys(plan.note for plan in plans) if note]
    if options.plans_memory and options.backend != "aten":
        notes.append("of the calls on aten; Inductor plans its own buffers")
    probe = probe or options.plans_memory
    return Peaks(_most(executable, probe), probe, plans, tuple(notes))


def of_values(replay: Replay) -> int | None:
    """The peak of allocated bytes of a run, without kernels' workspace; None where not known."""
    known = _parts(replay.executable) and replay.inductor_since is None
    return _most(replay.executable, probe=False) if known else None


def _most(executable: Lowered, probe: bool) -> int:
    most = 0
    for part in _parts(executable):
        besides = workspaces(part.program) if probe else {}
        allocated = planned_peak(part.memory, part.program, besides)
        most = max(most, accumulated(part.program) + allocated)
    return most


def accumulated(program: Program) -> int:
    """Bytes of the gradients that a part of a step takes, to add to them."""
    specs = program.signature.roles(Role.ACCUMULATOR)
    return sum(spec.meta.nbytes for spec in specs if spec.meta is not None)


def measured(
    replay: Replay,
    build: Callable[..., object],
    call: Call,
    scan: Callable[[], Step],
    owners: Sequence[object],
    options: Options,
    *,
    around: Callable[[Step], AbstractContextManager[None]],
) -> Peaks:
    """The peaks of one step with the arguments of ``call``, on copies of the states; and eager's.

    Eager runs `build` and the optimizers for real and is undone, as in `check`. It is left out
    with gradient accumulation. On a GPU nothing is measured here: torch.cuda.max_memory_allocated
    says it.
    """
    found = planned(replay, options, probe=True)
    if replay.devices != {"cpu"}:
        return replace(found, notes=(*found.notes, "measured on the CPU alone"))
    values = inputs_of(replay.leaves, replay.captured.side_effects.extended(call).tensors)
    values += map(copied, replay.derived.tensors)
    with torch.enable_grad(), below_autograd(), torch.random.fork_rng(devices=[]):
        (ours,) = taken([partial(replay.executable.function, values)])
    found = replace(found, measured=ours.peak, method=METHOD)
    if replay.program.signature.micro_batches > 1:
        return found
    autocast = Autocast(options.amp, (leaf.value for leaf in replay.leaves))
    built = autocast.eager(build)
    eager = Eager(built, call, scan, owners, options, replay.leaves, around)
    steps = recorded(lambda: eager.run(record_function(_STEP)))
    return replace(found, eager=steps[_STEP].peak)


def _parts(executable: Lowered) -> tuple[Executable, ...]:
    """The parts that run op by op: a CUDA Graph has a memory pool of its own."""
    parts = executable.executables if isinstance(executable, Plan) else (executable,)
    return tuple(part for part in parts if isinstance(part, Executable))
