"""The path of a compile: what a call left → Program → passes → Code → Replay."""

from __future__ import annotations

from typing import Any

from ..capture.program_of import Captured, program_of
from ..distributed.errors import NotPipelined
from ..errors import NoProgram
from ..ir.program import Program
from ..live.inputs import Call, described
from ..live.micro_batch import split_inputs
from ..lower import Target
from ..lower.raising import keep_unread
from ..passes import pipeline, run
from ..passes.runner import chosen
from ..pipeline.lowering import is_pipelined, pipelined
from ..record.compare.outcome import Outcome
from ..replay.cache import ProgramCache
from ..replay.code import Code
from ..replay.replay import Replay
from ..replay.switch import Switch
from . import announce
from .live_step import LiveStep


class Compiler:
    """Makes programs of calls that ran, and remembers the last one.

    Args:
        cache: whose CUDA Graphs the programs share.
    """

    def __init__(self, live: LiveStep, cache: ProgramCache) -> None:
        self._live, self._cache = live, cache
        self.latest: tuple[Replay, Call, Any] | None = None
        """The program that was made last, of which call, and its arguments described."""
        self.stage_seconds: dict[str, float] = {}

    def compile(self, outcome: Outcome, call: Call, *, goes_on: bool = False) -> Replay:
        """A program of what ``call`` left, bound to the objects that are there.

        Args:
            goes_on: the call has run; what is printed says so.

        Raises:
            CaptureError and its kin; PassFailed; VerifyError; CudaGraphRefused.
        """
        _refuse_eager(outcome)
        options, graphs = self._live.options, self._cache.graphs
        name = f"{self._live.name} {len(self._cache)}"
        stages, passes = self._live.printer(), pipeline(options)
        count = len(chosen(passes, options.passes))
        stages.begins(count + 4)
        with stages.stage("building graph", parts=count + 1, goes_on=goes_on):
            with stages.part("building graph from the step that ran"):
                stages.step("capture")
                captured = self.program_of(outcome, call)
            before = call.over(call.tensors)  # `build` may have changed the arguments since
            with stages.part("building graph with compile passes"):
                program = run(captured.program, passes, options.passes, starts=stages.step)
            announce.budget(program)
        with stages.stage("building plan", parts=3, goes_on=goes_on):
            stages.step("lower")
            switch = None
            if is_pipelined(options):
                code = self._in_stages(captured, program, name)
            else:
                code = graphs.lower(program, name, Target(options))
            if options.backend != "aten" and not is_pipelined(options):
                name = self._live.name
                switch = Switch(captured.program, program, name, options, graphs, stages)
            stages.step("bind")
            replay = Replay(captured, code, options, graphs.calls, switch)
            stages.step("done")
        self.stage_seconds = stages.seconds
        replay.example = call.without_data()
        self.latest = (replay, replay.example, described((before.args, before.kwargs)))
        announce.program(stages, self._live.name, replay, lambda: repr(self._live.owner))
        self._cache.drafted()
        return replay

    def _in_stages(self, captured: Captured, program: Program, name: str) -> Code:
        """The lowered code of a program whose modules have pipeline stages."""
        options, guard = self._live.options, captured.value_guard
        if self._live.schedulers.needs_loss and options.pipeline_outputs != "all":
            raise NotPipelined(
                "ReduceLROnPlateau goes by the loss, which the ranks of the last stage have alone.",
                fix='config.set_pipeline_outputs("all")',
            )
        runs = pipelined(program, name, options, () if guard is None else guard.fqns)
        return Code(program, runs, why_no_graph="its stages run one after the other")

    def program_of(self, outcome: Outcome, call: Call) -> Captured:
        """The captured program of what a call left, before any pass.

        Raises:
            NoProgram: the call stays in eager; CaptureError and its kin.
        """
        _refuse_eager(outcome)
        options = self._live.options
        accumulates = bool(self._live.optimizers) and options.micro_batches > 1
        split = split_inputs(call, self._live.build, options) if accumulates else frozenset()
        captured = program_of(outcome, options, split)
        keep_unread(captured.program)
        return captured


def _refuse_eager(outcome: Outcome) -> None:
    if outcome.eager:
        raise NoProgram(f"The step runs in eager: {outcome.eager}.")
