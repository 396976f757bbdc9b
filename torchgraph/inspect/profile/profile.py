"""``graph.profile()``: times of a step by node, module and phase, and their floor."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import torch
from rich.console import RenderableType

from ...debug.screen import Printed
from ...ir.program import Phase
from ...live.inputs import Call
from ...live.step import Step
from ...options.checking import OWN_CHECK, checked
from ...options.options import Options
from ...replay.cuda.graphs import device_of, op_by_op
from ...replay.replay import Replay
from ..facts import Steps, backend
from ..formats import chrome_trace, model_explorer
from ..formats.drawn import Drawn, Slice, in_order
from . import tables
from .floors import Floor, floor
from .lanes import measured, planned
from .planned import Planned
from .times import ModuleTime, NodeTime, besides, times
from .timing import timed


@dataclass(frozen=True)
class Profile(Printed):
    """Times of a step, and their floor: print it, or read its fields."""

    name: str
    """The name of the Graph."""
    backend: str
    """What ran: ``"aten"``, ``"inductor"``."""
    device: str
    threads: int
    """Those that torch computes with, on the CPU."""
    step: Steps
    """Whole steps, without clocks inside: the function of the program, not what a call adds."""
    nodes: tuple[NodeTime, ...]
    """In the order in which they first ran."""
    modules: tuple[ModuleTime, ...]
    """The longest first."""
    floor: Floor
    timeline: tuple[Slice, ...]
    """The calls of a run as measured, in the order in which they ran."""
    plan: tuple[Slice, ...]
    """The same as planned: each call by its work, at the rates that were measured here."""
    notes: tuple[str, ...] = ()
    drawn: Drawn | None = field(default=None, repr=False, compare=False)
    """The program, to be written for viewers."""

    @property
    def seconds(self) -> float:
        """Seconds of a step: the median."""
        return self.step.median

    @property
    def share(self) -> float:
        """The floor divided by the step's time: 1 for a step that cannot be faster here."""
        return self.floor.seconds / self.seconds

    @property
    def seconds_by_node(self) -> dict[str, float]:
        """node -> seconds."""
        return {one.node: one.seconds for one in self.nodes}

    @property
    def seconds_by_phase(self) -> dict[Phase, float]:
        """phase -> seconds, without phases that the step lacks."""
        found: dict[Phase, float] = {}
        for one in self.nodes:
            found[one.phase] = found.get(one.phase, 0.0) + one.seconds
        return {phase: found[phase] for phase in Phase if phase in found}

    @checked
    def save_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the step as a trace for ui.perfetto.dev and chrome://tracing, as JSON.

        Two processes, planned and measured; in each a lane for phases, modules and ops.

        Raises:
            CheckpointFileError: the path cannot be written.
        """
        chrome_trace.save(path, self.name, planned=self.plan, measured=self.timeline)

    @checked
    def save_model_explorer(
        self,
        path: str | os.PathLike[str],
        overlays: Annotated[model_explorer.Overlays, OWN_CHECK] = None,
    ) -> None:
        """Write the program for Model Explorer, with overlays for time, bytes and FLOPs.

        Args:
            overlays: further ones, each ``{node: number}`` by its name, such as an ``"error"``.

        Raises:
            InvalidOption: an overlay is none of this program; CheckpointFileError: a path cannot
                be written.
        """
        assert self.drawn is not None
        times = {one.node: 1e3 * one.seconds for one in self.nodes}
        model_explorer.save(path, self.name, self.drawn, overlays, times)

    def _tables(self) -> Iterator[RenderableType]:
        facts = (self.name, self.backend, self.device, self.threads, self.step, self.notes)
        yield tables.profile_head(*facts)
        yield tables.floors(self.floor, self.seconds)
        yield tables.phases(self.seconds_by_phase)
        yield tables.modules(self.modules)
        yield tables.nodes(self.nodes)


def profile(
    replay: Replay,
    build: Callable[..., object],
    call: Call,
    scan: Callable[[], Step],
    owners: Sequence[object],
    options: Options,
    *,
    name: str,
) -> Profile:
    """Time the program of ``replay`` on copies; the arguments are those of `check`."""
    device = device_of(replay.program) or torch.device("cpu")
    executable = op_by_op(replay.executable, replay.program)
    timing = timed(replay, executable, call)
    least = floor(replay.program, device)
    plan = Planned(replay.program, device, least)
    nodes, modules = times(timing, plan)
    known = {node.name for node in replay.program.nodes}
    replay.code.times.keep(
        {one.node: one.seconds for one in nodes if one.node in known},
        besides(nodes, known),
    )
    notes = [] if executable is replay.executable else ["timed op by op, not as its CUDA Graph"]
    return Profile(
        name=name,
        backend=backend(replay),
        device=str(device),
        threads=torch.get_num_threads(),
        step=Steps.of(timing.whole),
        nodes=nodes,
        modules=modules,
        floor=least,
        timeline=measured(timing.typical(), plan),
        plan=planned(in_order(executable), plan),
        notes=tuple(notes),
        drawn=Drawn.of(replay.program, executable),
    )
