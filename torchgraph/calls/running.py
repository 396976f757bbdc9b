"""Running: what a call of a Graph does. It chooses among recording, confirming and replaying."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any
from weakref import WeakSet

from torch import nn
from torch.optim import Optimizer

from .. import amp
from .._torch.surroundings import ambient, uncompiled, unfollowed
from ..amp import Scaler
from ..blocks.holder import ModuleHolder
from ..buckets.padder import Padder
from ..capture.program_of import Captured, program_of
from ..collection import paused
from ..config import GraphConfig
from ..debug.stages import Stages
from ..debug.tree import TreeSource
from ..errors import BuildNotOverridden, GraphBroken, NoProgram, SharedMemory, UnsupportedInput
from ..guards import Name
from ..library.expect import ValueMoved
from ..live import state
from ..live.discovery import steps_of
from ..live.inputs import Call, Inputs, described, unbound
from ..live.micro_batch import split_inputs
from ..live.snapshot import Snapshot
from ..live.step import Step
from ..lower import lower
from ..passes import pipeline, run
from ..record.compare.outcome import Outcome, rebound_between
from ..record.host.exits import Stray
from ..record.take import take
from ..replay.cache import ProgramCache
from ..replay.replay import Replay
from ..replay.switch import Switch
from ..structure import Contents
from . import announce
from .in_eager import is_bare, run_bare, why_alone
from .recordings import Recordings
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
        self._rebound: dict[Any, Name] = {}
        """Names under which others put another tensor between calls, by key."""
        self._strays: dict[Any, Stray] = {}
        """Places where a step keeps tensors, besides those that a scan finds."""
        self._driven = False
        """True when `build` takes the optimizers' steps itself."""
        self._schedulers = Schedulers()
        self._cache = ProgramCache()
        self._inputs = Inputs(self.build)
        self._recordings = Recordings(self._cache, self._take, partial(self._compile, goes_on=True))
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
        if replay is None:
            returned = self._recorded(call)
        elif self._has_gradients(replay) or self._recordings.doubts(replay, call):
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
                self._schedulers.step(lambda: replay.loss, stepped)
        return returned

    def _has_gradients(self, replay: Replay) -> bool:
        """True when the gradients that are there are not those that the program starts from."""
        if replay.captured.driven:
            return not replay.captured.host.fits()
        return bool(self._optimizers) and not replay.guards.no_gradients()

    def _other(self, tried: Replay, call: Call) -> Any:
        """A call that the program which seemed to fit does not serve, or may not."""
        key = self._key(call)
        for replay in self._cache.others(key, tried):
            if self._has_gradients(replay) or self._recordings.doubts(replay, call):
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
        call = call.noted()
        if self._last_call is not None and (serves := self._stays_eager(call)) is not None:
            self._progress.count(serves)
            with self._building(), uncompiled():
                return run_bare(self.build, call, self._last_call[0].step)
        with self._scaler_started(), paused():
            step = self._scan()
            updates = not self._driven and bool(self._optimizers)
            why, said = why_alone(step, call, self.config.options, updates=updates)
            if why:
                taken = self._recordings.alone(step, call, why, said=said)
            else:
                taken = self._recordings.take(self._key(call), step, call, self.config.options)
            outcome = taken.outcome
            try:
                self._recordings.learn(taken)
            finally:  # whatever comes of that, Ctrl-C or a warning that is an error
                self._progress.count(outcome.serves)
                if self._drive(outcome):
                    taken.be_patient()
                if self._optimizers:
                    stepped = outcome.stepped_of(self._optimizers)
                    self._schedulers.step(lambda: outcome.loss, stepped)
        self._last_call = (outcome.forgotten(), call.without_data())
        return outcome.returned

    def _stays_eager(self, call: Call) -> str | None:
        """The arguments in words of a call that runs as the function stands; None: it may not."""
        options, own = self.config.options, list(self._schedulers) or not self._driven
        bare = not own and is_bare(call, options)
        return self._recordings.stays_eager(self._key(call), options) if bare else None

    def _fit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, Replay | None]:
        options = self.config.options
        try:
            if options.buckets is not None:
                return self._padder.fit(args, kwargs, options)
            call = self._inputs.bind(args, kwargs)
        except UnsupportedInput as error:
            call = unbound(args, kwargs, error.way_out)
            self._recordings.unbound(self._key(call), error, options)
            return call, None
        return call, self._program_for(call)

    def _key(self, call: Call) -> Any:
        return (call.key, ambient(), self.config.options, getattr(self.build, "__func__", None))

    def _program_for(self, call: Call) -> Replay | None:
        if call.apart:
            return None
        key = self._key(call)
        found = self._cache.find(key)
        if found is None and self._cache.holds(key):
            with self._scaler_started():
                step = self._scan()
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
            scanned = self._scan()
            if scanned.impossible or scanned.scripted or scanned.lazy or call.apart or unfollowed():
                return None  # TorchScript's methods count calls: no step aside is taken back
            outcome = self._aside_outcome(call, strict=False)
            if not outcome.is_whole:
                return None  # states are not there yet, or it is skipped: eager's own step
            found = self._compile(outcome, call)
            self._cache.add(self._key(call), found, self.config.options.cache_size)
            self._recordings.doubt(self._key(call), found, outcome, call)
        return found

    def _compile(self, outcome: Outcome, call: Call, *, goes_on: bool = False) -> Replay:
        _refuse_eager(outcome)
        options = self.config.options
        stages = Stages(self._name, type(self).__name__, self._blocks.debug().level())
        passes = pipeline(options)
        with stages.stage("building graph", parts=len(passes) + 2, goes_on=goes_on):
            with stages.part("building graph modules"):
                captured = self._program_of(outcome, call)
            before = call.over(call.tensors)  # `build` may have changed the arguments since
            announce.modules(stages, self._source(), captured, before, self._blocks.debug)
            with stages.part("building graph with compile passes"):
                program = run(captured.program, passes, options.passes)
            announce.budget(program)
        with stages.stage("building plan", parts=1, goes_on=goes_on):
            graphing = self._cache.graphs.graphing(options)
            around = graphing.around(program)
            lowered = lower(program, f"{self._name} {len(self._cache)}", options, around)
            replay = Replay(captured, program, lowered, options, graphing)
        if options.backend != "aten":
            replay.before_run = Switch(replay, options, self._name, stages).before_run
        self._stage_seconds = stages.seconds
        self._shown = (replay, call.without_data(), described((before.args, before.kwargs)))
        announce.program(stages, self._name, replay, lambda: repr(self))
        self._cache.drafted()
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

    def _aside_outcome(self, call: Call, *, strict: bool = True) -> Outcome:
        """What a step would leave: it runs, and is taken back."""
        with self._kept(call) as step:
            return self._take(step, call, True, strict)

    @contextmanager
    def _kept(self, call: Call) -> Iterator[Step]:
        """What runs here is taken back."""
        with self._scaler_started():
            step = self._scan()
            tensors = [leaf.value for _, leaf in step.tensors()]
            scalers = [] if self._scaler is None else [self._scaler]
            moved = self._moved_by_build()
            owners = [self, *step.modules.values(), *self._optimizers, *scalers, *moved]
            contents = Contents(call.args, call.kwargs)
            with contents.kept(), Snapshot(owners, [*tensors, *call.tensors]).kept():
                yield step

    @contextmanager
    def _with_states(self, call: Call) -> Iterator[None]:
        """Where a step would make states, one runs before what is done here, and is taken back."""
        with ExitStack() as stack:
            if self._program_for(call) is None:
                outcome = self._aside_outcome(call)
                if not outcome.settled and (outcome.driven or not outcome.step.has_gradients()):
                    self._take(stack.enter_context(self._kept(call)), call, False)
            yield

    def _scan(self) -> Step:
        """What a step consists of now."""
        if not (self._driven or self._optimizers or self._scaler):
            self._find_own_steps()
        scaler = None if self._driven else self._scaler
        return Step.scan(
            self._modules,
            self._optimizers,
            scaler,
            driven=self._driven,
            containers=self._stray_containers(),
        )

    def _find_own_steps(self) -> None:
        """A `build` that names optimizers and ``step`` steps them, if not in its first call."""
        if named := steps_of(self.build):
            self._driven = True
            self._optimizers.extend(named)
            self.config._set(training=True)

    def _stray_containers(self) -> list[tuple[str, Any]]:
        found = {key: stray.container() for key, stray in self._strays.items()}
        self._strays = {key: stray for key, stray in self._strays.items() if found[key]}
        return [container for container in found.values() if container is not None]

    def _scaler_started(self) -> AbstractContextManager[None]:
        return amp.started(None if self._driven else self._scaler, self._optimizers)

    def _moved_by_build(self) -> Sequence[Any]:
        """Objects besides modules and optimizers whose attributes `build` moves."""
        return ()

    def _drive(self, outcome: Outcome) -> bool:
        """Take note of optimizers that `build` has stepped, and of places; True for new places."""
        known = len(self._strays) + len(self._rebound)
        self._driven = self._driven or outcome.driven
        self._optimizers.extend(outcome.adopted)
        self._strays.update({stray.key: stray for stray in outcome.strays})
        if self._driven and self._last_call is not None:
            self._rebound.update(rebound_between(self._last_call[0], outcome))
        if outcome.adopted:
            self.config._set(training=True)
        return len(self._strays) + len(self._rebound) > known

    def _take(self, step: Step, call: Call, heard: bool, strict: bool = False) -> Outcome:
        given = call.unbound
        with self._building(), uncompiled():
            return take(
                step,
                self.build if given is None else partial(self.build, *given[0], **given[1]),
                call,
                watched=[(self._name, self)],
                graph_class=Running,
                depth=self._blocks.debug().max_py_stack_depth,
                options=self.config.options,
                heard=heard,
                strict=strict,
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
        raise NoProgram(f"The step runs in eager: {outcome.eager}.")
