"""Running: what a call of a Graph does. It chooses among recording, confirming and replaying."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

from torch import nn
from torch.optim import Optimizer

from . import amp, state
from .amp import Scaler
from .buckets import Padder
from .cache import ProgramCache
from .capture.inputs import Call, Inputs, described
from .capture.micro_batch import split_inputs
from .capture.program_of import Captured, program_of
from .capture.step import Step
from .collection import paused
from .config import GraphConfig, ambient
from .debug.stages import Stages
from .debug.tree import TreeSource
from .errors import BuildNotOverridden, GraphBroken, NotSupported, SharedMemory
from .holder import ModuleHolder
from .inspect import announce
from .inspect.snapshot import Snapshot
from .lower import lower
from .ops.expect import ValueMoved
from .passes import pipeline, run
from .record.outcome import Outcome
from .record.take import take
from .recordings import Recordings
from .replay.replay import Replay
from .replay.switch import Switch
from .schedule import Schedulers

_in_build: ContextVar[bool] = ContextVar("_in_build", default=False)
_capturing = threading.RLock()
"""A recording patches torch.nn.Module for its length: one at a time in a process."""


def building() -> bool:
    """True inside of the `build` of a Graph that is recorded."""
    return _in_build.get()


class Running(ModuleHolder):
    """Base of Graph: its state, and the life of a call.

    Args:
        name: of the Graph.
        module_text, block_text: as for `ModuleHolder`.
    """

    def __init__(
        self,
        name: str,
        module_text: Callable[[str], str],
        block_text: Callable[[str], str],
    ) -> None:
        super().__init__(module_text, block_text)
        self._name = name
        self._optimizers: list[Optimizer] = []
        self._scaler: Scaler | None = None
        self._schedulers = Schedulers()
        self._cache = ProgramCache()
        self._inputs = Inputs(self.build)
        self._recordings = Recordings(self._cache, self._take, self._compile)
        self._padder = Padder(
            self._inputs, self.build, self._program_for, self._program_aside, self._captured
        )
        self._lock = threading.RLock()
        self._shown: tuple[Replay, Call, Any] | None = None
        self._progress = state.Progress()
        self._strangers: WeakSet[nn.Module] = WeakSet()
        """Modules that no attribute holds, of which was warned."""
        self._last_call: tuple[Outcome, Call] | None = None
        self._stage_seconds: dict[str, float] = {}
        self.config = GraphConfig()

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """The step: forward, ``loss.backward()``, what to return. To be overridden."""
        raise BuildNotOverridden(f"{type(self).__name__} does not define build().")

    def _step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if broken := self._cache.broken:
            raise GraphBroken(f"An earlier step of {self._name} failed half-way ({broken}).")
        self._schedulers.check()
        call, replay = self._fit(args, kwargs)
        if replay is None or self._has_gradients(replay):
            returned = self._recorded(call)
        elif self._recordings.doubts(replay, call):
            returned = self._other(replay, call)
        else:
            try:
                returned = self._replayed(replay, call)
            except (ValueMoved, SharedMemory):  # nothing has happened
                returned = self._other(replay, call)
        return returned if self.config.options.buckets is None else self._padder.cut(returned)

    def _replayed(self, replay: Replay, call: Call) -> Any:
        self._schedulers.check_loss(replay.returns_loss)
        if replay.before_run is not None:
            replay.before_run(self._progress.calls[replay.serves])
        with replay.around:
            returned = self._cache.run(replay, call)
            self._progress.count(replay.serves)
            if self._optimizers:
                stepped = replay.stepped(self._optimizers)
                self._schedulers.step(lambda: replay.loss(returned), stepped)
        return returned

    def _has_gradients(self, replay: Replay) -> bool:
        return bool(self._optimizers) and not replay.guards.no_gradients()

    def _other(self, tried: Replay, call: Call) -> Any:
        """A call that the program which seemed to fit does not serve, or may not."""
        key = self._key(call)
        for replay in self._cache.others(key, tried):
            if self._recordings.doubts(replay, call):
                continue
            try:
                returned = self._replayed(replay, call)
            except (ValueMoved, SharedMemory):
                continue
            self._cache.prefer(key, replay)
            return returned
        return self._recorded(call)

    def _recorded(self, call: Call) -> Any:
        """One step as eager runs it; the next one like it may have a program."""
        with amp.started(self._scaler, self._optimizers), paused():
            step = Step.scan(self._modules, self._optimizers, self._scaler)
            if self._optimizers and step.has_gradients():
                taken = self._recordings.alone(step, call)
            else:
                taken = self._recordings.take(self._key(call), step, call, self.config.options)
            outcome = taken.outcome
            try:
                self._recordings.learn(taken)
            finally:  # whatever comes of that, Ctrl-C or a warning that is an error
                self._progress.count(outcome.serves)
                numbered = enumerate(self._optimizers)
                stepped = [opt for number, opt in numbered if number not in outcome.skipped]
                if self._optimizers:
                    self._schedulers.step(lambda: outcome.loss, stepped)
        self._last_call = (outcome.forgotten(), call.without_data())
        return outcome.returned

    def _fit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, Replay | None]:
        if self.config.options.buckets is not None:
            return self._padder.fit(args, kwargs, self.config.options)
        call = self._inputs.bind(args, kwargs)
        return call, self._program_for(call)

    def _key(self, call: Call) -> Any:
        return (call.key, ambient(), self.config.options)

    def _program_for(self, call: Call) -> Replay | None:
        key = self._key(call)
        found = self._cache.find(key)
        if found is None and self._cache.holds(key):
            with amp.started(self._scaler, self._optimizers):
                step = Step.scan(self._modules, self._optimizers, self._scaler)
                found = self._cache.refit(key, step)
        return found

    def _programs_for(self, call: Call) -> Iterator[Replay]:
        """Those that may serve a call as things stand; then one made of it that serves no call."""
        found = self._program_for(call)
        if found is not None:
            yield found
            yield from self._cache.others(self._key(call), found)
        yield self._compile(self._aside_outcome(call), call)

    def _program_aside(self, call: Call) -> Replay | None:
        """The program for a call, made from a step that is taken back; None for an odd step.

        The next other batch confirms it, by another such step.
        """
        found = self._program_for(call)
        if found is not None and self._recordings.doubts(found, call):
            with self._kept(call) as step:
                self._recordings.learn(
                    self._recordings.take(self._key(call), step, call, self.config.options)
                )
            found = self._program_for(call)
        if found is None:
            if Step.scan(self._modules, self._optimizers, self._scaler).impossible:
                return None  # TorchScript's methods count calls: no step aside is taken back
            outcome = self._aside_outcome(call)
            if (
                outcome.eager
                or not (outcome.settled and outcome.stepped)
                or outcome.step.has_gradients()
            ):
                return None  # states are not there yet, or it is skipped: eager's own step
            found = self._compile(outcome, call)
            self._cache.add(self._key(call), found, self.config.options.cache_size)
            self._recordings.doubt(self._key(call), found, outcome, call)
        return found

    def _compile(self, outcome: Outcome, call: Call) -> Replay:
        _refuse_eager(outcome)
        options = self.config.options
        stages = Stages(self._name, type(self).__name__, self._blocks.debug().level())
        passes = pipeline(options)
        with stages.stage("building graph", parts=len(passes) + 2):
            with stages.part("building graph modules"):
                captured = self._program_of(outcome, call)
            announce.modules(stages, self._source(), captured, call, self._blocks.debug)
            with stages.part("building graph with compile passes"):
                program = run(captured.program, passes, options.passes)
            announce.budget(program)
        with stages.stage("building plan", parts=1):
            graphing = self._cache.graphs.graphing(options)
            around = graphing.around(program)
            lowered = lower(program, f"{self._name} {len(self._cache)}", options, around)
            replay = Replay(captured, program, lowered, options, graphing)
        if options.backend != "aten":
            replay.before_run = Switch(replay, options, self._name, stages).before_run
        self._stage_seconds = stages.seconds
        self._shown = (replay, call.without_data(), described((call.args, call.kwargs)))
        announce.program(stages, self._name, replay, lambda: repr(self))
        self._cache.drafted(options.cache_size)
        return replay

    def _program_of(self, outcome: Outcome, call: Call) -> Captured:
        _refuse_eager(outcome)
        options = self.config.options
        accumulates = bool(self._optimizers) and options.micro_batches > 1
        split = split_inputs(call, self.build, options) if accumulates else frozenset()
        return program_of(outcome, options, split)

    def _captured(self, call: Call) -> Captured:
        """As things stand; nothing comes of it."""
        return self._program_of(self._aside_outcome(call), call)

    def _aside_outcome(self, call: Call) -> Outcome:
        """What a step would leave: it runs, and is taken back."""
        with self._kept(call) as step:
            return self._take(step, call, True)

    @contextmanager
    def _kept(self, call: Call) -> Iterator[Step]:
        """What runs here is taken back."""
        with amp.started(self._scaler, self._optimizers):
            step = Step.scan(self._modules, self._optimizers, self._scaler)
            tensors = [leaf.value for _, leaf in step.tensors()]
            scalers = [] if self._scaler is None else [self._scaler]
            owners = [self, *step.modules.values(), *self._optimizers, *scalers]
            with Snapshot(owners, [*tensors, *call.tensors]).kept():
                yield step

    @contextmanager
    def _with_states(self, call: Call) -> Iterator[None]:
        """Where a step would make states, one runs before what is done here, and is taken back."""
        with ExitStack() as stack:
            if self._program_for(call) is None:
                outcome = self._aside_outcome(call)
                if not (outcome.settled or outcome.step.has_gradients()):
                    self._take(stack.enter_context(self._kept(call)), call, False)
            yield

    def _take(self, step: Step, call: Call, heard: bool) -> Outcome:
        with self._building():
            return take(
                step,
                self.build,
                call,
                watched=[(self._name, self)],
                graph_class=Running,
                depth=self._blocks.debug().max_py_stack_depth,
                options=self.config.options,
                heard=heard,
                may_rest=self._progress.step > 0,
                warned=self._strangers,
                built=self._schedulers.check_loss,
            )

    @contextmanager
    def _building(self) -> Iterator[None]:
        """`build` may run here: it meets bare modules; optimizer steps are not the user's."""
        with _capturing, self._inside_build():
            self._schedulers.tracing(True)
            token = _in_build.set(True)
            try:
                yield
            finally:
                _in_build.reset(token)
                self._schedulers.tracing(False)

    def _source(self, path: str = "") -> TreeSource:
        options = self._blocks.debug(path)
        return TreeSource(
            graph_name=self._name,
            class_name=type(self).__name__,
            config_repr=repr(self.config),
            modules=self._modules,
            checkpointing=self._blocks.checkpointing,
            locations=options.op_repr_with_py_stack,
            stack_depth=options.max_py_stack_depth,
        )

    def _forget(self) -> None:
        self._cache.clear()
        self._recordings.clear()


def _refuse_eager(outcome: Outcome) -> None:
    if outcome.eager:
        raise NotSupported(f"The step runs in eager: {outcome.eager}.")
