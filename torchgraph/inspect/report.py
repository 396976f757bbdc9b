"""``graph.report()``: the captured program and its compilation, as data and as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from rich.console import RenderableType
from rich.text import Text
from torch import nn

from ..calls.fallback import Fallback
from ..calls.spot_checks.schedule import SpotChecks
from ..debug.screen import Printed
from ..debug.units import size
from ..ir.program import PassRecord, Refusal, Role
from ..live.inputs import Call
from ..options.checking import OWN_CHECK, checked
from ..options.options import Options
from ..replay.cache import ProgramCache
from ..replay.cuda.graphs import status
from ..replay.replay import Replay
from ..verify.audit import Confirmation
from . import baked, facts, peaks, pipelining, recomputation, tables, variants
from .baked import Baked
from .facts import (
    Branch,
    CallCounts,
    Guard,
    PhaseCount,
    Predicate,
    ProgramMemory,
    Programs,
    StageTime,
    Steps,
)
from .formats import memory_snapshot, model_explorer
from .formats.drawn import Drawn
from .page import page, tables as page_tables
from .page.data import Shown
from .page.source import Source, source_of
from .page.timings import Timings
from .peaks import Peaks
from .precision import Precision, precision
from .recomputation import Recomputation


@dataclass(frozen=True, kw_only=True)
class Report(Printed):
    """What became of one Graph: ``print`` it, show it with rich, or read its fields.

    The fields are about the program that was captured last; ``programs`` is about all of them.
    """

    name: str
    """The name of the Graph: ``TrainGraph_0``."""
    backend: str
    """That which runs: ``"inductor"``, ``"aten"``, or ``"aten (inductor failed: ...)"``.

    ``"eager"`` where there is no program: then ``no_program`` says why, and ``calls`` what ran.
    """
    no_program: str = ""
    """Why there is no program; empty where there is one."""
    stages: tuple[StageTime, ...] = ()
    passes: tuple[PassRecord, ...] = ()
    """In the order in which they ran."""
    nodes: tuple[PhaseCount, ...] = ()
    """Forward, backward, update."""
    memory: ProgramMemory = field(default_factory=ProgramMemory)
    programs: Programs
    branches: tuple[Branch, ...] = ()
    """Decisions on the optimizers' numbers."""
    moving: tuple[str, ...] = ()
    """Numbers of the optimizers that may change at any time: the next call uses them."""
    free_to_move: tuple[str, ...] = ()
    """What these numbers are called in param groups: ``lr``, ``betas``."""
    guards: tuple[Guard, ...] = ()
    """Attributes and settings that must stay, besides the modules, tensors and hooks themselves."""
    guard_form: str = "python"
    """What checks all that before each call: ``"compiled"`` or ``"python"``."""
    guard_seconds: float | None = None
    """What that takes, the median of a sample of the last calls; None before one was timed."""
    baked: tuple[Baked, ...] = ()
    peaks: Peaks = field(default_factory=Peaks)
    """What a step allocates at its most; measured where it was asked for."""
    cuda_graph: str = "no program"
    """``"captured"``, ``"refused"``, how far it is, or why there is none."""
    refusals: tuple[Refusal, ...] = ()
    """Why the step cannot be a CUDA Graph, with the user's lines."""
    recomputed: tuple[Recomputation, ...] = ()
    """What activation checkpointing saves and costs, by module."""
    pipeline: pipelining.Pipeline | None = None
    """The stages, where modules were put into stages that are placed."""
    steps: Steps | None = None
    """What the last steps took; None before the second run of the program."""
    gradient_norms: tuple[tuple[str, float], ...] = ()
    """(param group, norm) of the last step, with ``config.enable_gradient_norms``."""
    precision: tuple[Precision, ...] = ()
    """What runs in which type, where it is more than one; the update left out."""
    predicates: tuple[Predicate, ...] = ()
    """Values of tensors that Python read, which each step must find again."""
    confirmation: Confirmation | None = None
    """How compiled code was compared with the `aten` program; None while there is none."""
    calls: CallCounts = field(default_factory=CallCounts)
    """How the calls so far have run, and why where it was in eager."""
    backend_plan: str = ""
    """When `auto` switches to Inductor's code and why, since when it runs, or why it does not."""
    source: Source = field(default_factory=lambda: Source(()), repr=False, compare=False)
    """The programs and modules, for `save_html`; it holds no tensor of yours."""

    @checked
    def save_html(self, path: page.Path, profile: Annotated[Timings, OWN_CHECK] = None) -> None:
        """Write all of this as one page of HTML, which loads nothing else: no network is needed.

        Modules to fold, ops to search, the program before and after each pass, memory and time,
        guards, programs, refusals. Needs ``pip install 'torch-nn-graph[page]'``.

        Args:
            profile: times that were measured, ``graph.profile(*args)`` or ``{node: seconds}``;
                without it they are estimated, and the page says so.

        Raises:
            NotSupported: what draws is not installed; InvalidOption: a profile of another program;
                CheckpointFileError: the path cannot be written. What was there is as it was.
        """
        page.save_html(path, self._shown(), profile)

    @checked
    def save_svg(
        self,
        path: page.Path,
        plot: str = "memory",
        profile: Annotated[Timings, OWN_CHECK] = None,
    ) -> None:
        """Write a plot of the page: ``"memory"``, ``"modules"``, ``"phases"`` or ``"stages"``.

        Raises:
            NoProgram: the step stays in eager; InvalidOption: no such plot, or a path of another
                form, as ``.png``; else what `save_html` raises.
        """
        page.save_plot(path, self._shown(), plot, "svg", profile)

    @checked
    def save_png(
        self,
        path: page.Path,
        plot: str = "memory",
        profile: Annotated[Timings, OWN_CHECK] = None,
    ) -> None:
        """Write a plot of `save_svg` as PNG, two pixels for each point."""
        page.save_plot(path, self._shown(), plot, "png", profile)

    def _shown(self) -> Shown:
        """The part of the report that the page shows."""
        plan = self.backend_plan
        said = [plan, f"Compiled code: {self.confirmation}" if self.confirmation else ""]
        if self.backend == "eager":
            said = ["No program holds this step: it runs in eager.", self.no_program]
            said += [f"{one.serves}: {one.why}" for one in self.calls.eager]
        return Shown(
            self.name,
            self.source,
            tuple(filter(None, [*said, *self.peaks.notes])),
            tuple((what, much) for what, much in self._figures() if much),
            self.passes,
            self.stages,
            self._page_tables(),
        )

    def _checked(self) -> str:
        """The guard checks before each call, and their time."""
        return tables.checked(self.guard_form, self.guard_seconds)

    def _figures(self) -> Iterator[tuple[str, str]]:
        """(name, value) pairs for the head of the page; an empty value is not known."""
        yield "backend", self.backend
        if self.source.programs is not None:
            yield "nodes after all passes", str(sum(one.after_passes for one in self.nodes))
            took = self.steps and f"{float(f'{1e3 * self.steps.median:.3g}'):g} ms"
            yield "per step on the host, median", took or ""
            for what, count in (
                ("planned peak of a step", self.peaks.planned),
                ("measured peak of a step", self.peaks.measured),
                ("there before a step", self.memory.total),
            ):
                yield what, "" if count is None else size(count)
        yield "calls by programs", str(self.calls.programs)
        yield "calls recorded", str(self.calls.recorded)
        yield "calls looked at", str(self.calls.looked)
        yield "calls in eager", str(sum(one.count for one in self.calls.eager))
        yield "programs held", str(len(self.programs.held))

    def _page_tables(self) -> dict[str, list[tables.Table]]:
        """The tables by section of the page."""
        held = [tables.calls(self.calls), page_tables.programs(self.programs)]
        if self.backend == "eager":
            return {"programs": held}
        memory = replace(tables.memory(self.memory), title="Memory that is there before a step")
        left = replace(tables.refusals(self.passes), title="Left alone by passes", empty="Nothing.")
        return {
            "overview": [
                tables.nodes(self.nodes),
                tables.precision(self.precision),
                page_tables.recomputed(self.recomputed),
                tables.pipeline(self.pipeline),
                tables.gradient_norms(self.gradient_norms),
            ],
            "memory": [memory],
            "guards": [
                page_tables.guards(self.guards, self.free_to_move, self._checked()),
                page_tables.predicates(self.predicates),
                page_tables.branches(self.branches),
                page_tables.baked(self.baked),
            ],
            "programs": held,
            "refusals": [left, tables.cuda_graph(self.cuda_graph, self.refusals)],
        }

    drawn: Drawn | None = field(default=None, repr=False, compare=False)
    """The program, to be written for viewers; None where there is none."""

    @checked
    def save_memory_snapshot(self, path: page.Path) -> None:
        """Write the planned memory of a step for pytorch.org/memory_viz. It needs no step to run.

        What there is before a step, what it allocates, and until when, with the user's lines.

        Raises:
            NoProgram: the step stays in eager; CheckpointFileError: the path cannot be written.
        """
        memory_snapshot.save(path, self._drawn())

    @checked
    def save_model_explorer(
        self, path: page.Path, overlays: Annotated[model_explorer.Overlays, OWN_CHECK] = None
    ) -> None:
        """Write the program for Model Explorer; overlays for bytes and FLOPs in files beside it.

        Args:
            overlays: further ones, each ``{node: number}`` by its name, such as an ``"error"``.

        Raises:
            NoProgram: the step stays in eager; InvalidOption: an overlay is none of this program;
                CheckpointFileError: a path cannot be written.
        """
        model_explorer.save(path, self.name, self._drawn(), overlays)

    def _drawn(self) -> Drawn:
        if self.drawn is None:
            raise page.stays_in_eager(self.name, "write")
        return self.drawn

    @classmethod
    def of(
        cls,
        name: str,
        replay: Replay | None,
        call: Call | None,
        cache: ProgramCache,
        options: Options,
        seconds: Mapping[str, float],
        fallback: Fallback,
        looks: SpotChecks,
        modules: Mapping[str, nn.Module],
        measured: Peaks | None = None,
        why: str = "",
    ) -> Report:
        """The report of the program in ``replay``, which was captured for ``call``; None: of none.

        Args:
            measured: its peaks, where they were measured.
            why: the reason why there is no program.
        """
        counts = (fallback.recorded, fallback.eager, looks.count, looks.note)
        calls = CallCounts(cache.served + looks.count, *counts)
        if replay is None or call is None:
            return cls._without(why, name, cache, options, calls, source_of(modules))
        found = measured or peaks.planned(replay, options)
        program, captured = replay.program, replay.captured
        optimizers = [guard.optimizer for guard in replay.guards.optimizers]
        values = baked.collect(program, call, optimizers)
        return cls(
            name=name,
            backend=facts.backend(replay),
            stages=facts.stages(seconds, replay),
            passes=tuple(program.history),
            nodes=facts.nodes(captured.program, program, replay.executable.programs),
            memory=facts.memory(program, values),
            programs=_held(cache, replay, options),
            calls=calls,
            branches=facts.branches(captured.value_guard),
            moving=tuple(str(spec.fqn) for spec in program.signature.roles(Role.SCALAR)),
            free_to_move=facts.free_to_move(program),
            guards=tuple(Guard(str(what), value) for what, value in replay.guards.describe()),
            guard_form=replay.guards.form,
            guard_seconds=replay.guard_times.median,
            baked=values,
            peaks=found,
            cuda_graph=status(replay.code),
            refusals=replay.code.refusals,
            recomputed=recomputation.collect(program),
            pipeline=pipelining.collect(replay.executable),
            precision=precision(program),
            predicates=facts.predicates(program),
            steps=facts.steps(replay),
            confirmation=replace(replay.audit.status) if replay.audit else None,
            backend_plan=facts.backend_plan(replay),
            gradient_norms=tuple((str(group), n.item()) for group, n in replay.norms.items()),
            drawn=Drawn.of(program, replay.executable),
            source=source_of(modules, replay, found.plans),
        )

    @classmethod
    def _without(
        cls,
        why: str,
        name: str,
        cache: ProgramCache,
        options: Options,
        calls: CallCounts,
        source: Source,
    ) -> Report:
        programs = _held(cache, None, options)
        return cls(
            name=name,
            backend="eager",
            no_program=why,
            programs=programs,
            calls=calls,
            source=source,
        )

    def _tables(self) -> Iterator[RenderableType]:
        plan = self.no_program or self.backend_plan
        yield tables.report_head(self.name, self.backend, self.nodes, self.steps, plan)
        calls = tables.calls(self.calls)
        if self.calls.untold:
            untold = f"The last look told nothing: {self.calls.untold}"
            calls = replace(calls, title=f"{calls.title}\n{untold}")
        if self.backend == "eager":
            yield from (calls, tables.programs(self.programs))
            return
        yield tables.stages(self.stages)
        yield tables.passes(self.passes)
        yield tables.refusals(self.passes)
        yield tables.nodes(self.nodes)
        yield tables.precision(self.precision)
        yield tables.memory(self.memory)
        yield tables.peaks(self.peaks)
        yield tables.memory_plans(self.peaks.plans)
        if self.confirmation is not None:
            style = "yellow" if self.confirmation.dropped else "bold"
            yield Text(f"\nCompiled code: {self.confirmation}", style)
        yield tables.cuda_graph(self.cuda_graph, self.refusals)
        yield tables.recomputed(self.recomputed)
        yield tables.pipeline(self.pipeline)
        yield calls
        yield tables.programs(self.programs)
        yield tables.gradient_norms(self.gradient_norms)
        yield tables.guards(self.guards, self.free_to_move, self._checked())
        yield tables.predicates(self.predicates)
        yield tables.branches(self.branches)
        yield tables.baked(self.baked)


def _held(cache: ProgramCache, reported: Replay | None, options: Options) -> Programs:
    replays = list(cache)
    held = [facts.held(one, reported, peaks.of_values(one)) for one in replays]
    words = variants.differences(replays, [one.signature for one in held])
    held = [replace(one, told=told) for one, told in zip(held, words, strict=True)]
    return Programs(tuple(held), options.cache_size, cache.hits, cache.misses, tuple(cache.reasons))
