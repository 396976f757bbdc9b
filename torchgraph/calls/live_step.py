"""The step of a Graph over live objects: its modules, optimizers and other state, and its run."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set as AbstractSet
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar
from weakref import WeakSet, ref

import torch
from torch import nn
from torch.optim import Optimizer

from .. import amp
from .._torch.compiled import uncompiled, watched
from .._torch.patching import patching
from ..amp import Scaler
from ..blocks.block import BlockTree
from ..blocks.holder import ModuleHolder
from ..collection import paused
from ..config import GraphConfig
from ..debug.stages import Stages
from ..distributed.replicas import Replicas
from ..distributed.zero.cover import shards_of
from ..errors import NotSupported
from ..guards import Name
from ..lines import warnings_told
from ..live import state
from ..live.discovery import discover, steps_of
from ..live.inputs import Call, Inputs, paths
from ..live.named import NumberPlace
from ..live.places import containers, innermost
from ..live.replicas import groups_of, running
from ..live.snapshot import Snapshot
from ..live.step import Step
from ..options.options import Options
from ..pipeline.alike import check_alike
from ..pipeline.layout import staged_modules
from ..record.compare.outcome import Outcome, rebound_between, renumbered_between
from ..record.side_effects.loop_carried import Stray
from ..record.take import take
from ..record.tape.watch import NOBODY, Observer
from ..replay.interrupts import CUT_SHORT, SignalsWait
from ..structure import Contents
from . import announce
from .call_lock import CallLock
from .schedulers import Schedulers

_SILENT = nullcontext()
_OFTEN = 2
"""Recordings that each found another number in a place before it counts as one that moves."""
in_build: ContextVar[LiveStep | None] = ContextVar("in_build", default=None)
"""The step whose `build` runs."""


def building() -> bool:
    """True inside of the `build` of a Graph that is recorded."""
    return in_build.get() is not None


@dataclass
class Trained:
    """What a step trains with. Whoever undoes a step restores these attributes, and the list."""

    optimizers: list[Optimizer] = field(default_factory=list)
    scaler: Scaler | None = None
    own_update: bool = False
    """True when `build` takes the optimizers' steps itself."""
    added: tuple[int, ...] = ()
    """The optimizers that the Graph was given, by id: programs are of these."""


class LiveStep:
    """The live objects that a step trains, what its calls share, and `build` run in eager.

    Not `live.step.Step`, which is one scan of it. Calls share a lock, how signals wait, counts, the
    last call in eager and the output of `debug`.

    Args:
        owner: the Graph, of which only a weak reference is held: programs and all that leads to
            them end with it, and wait for no collection.
        name: the Graph's.
        modules, blocks: those of the Graph, by name.
    """

    may_run_bare: ClassVar[bool] = True
    """False where more belongs to a call than ``build`` and the update."""

    def __init__(
        self,
        owner: ModuleHolder,
        name: str,
        modules: OrderedDict[str, nn.Module],
        blocks: BlockTree,
        config: GraphConfig,
    ) -> None:
        self._owner = ref(owner)
        self.name = name
        self.modules = modules
        self.blocks = blocks
        self.config = config
        self.trained = Trained()
        self.replicas = Replicas()
        self.schedulers = Schedulers()
        self.inputs = Inputs(self.build)
        self.progress = state.Progress()
        self.signals = SignalsWait(gives_in=True)
        """Ctrl-C waits while this is entered; where the step can be taken back it is open."""
        self.lock = CallLock(self.signals)
        """One thread at a time calls the Graph."""
        self.last_call: tuple[Outcome, Call] | None = None
        """The last call that ran as eager runs it, without its data."""
        self.words: Mapping[str, str] = {}
        """The user's names, by torchgraph's own names."""
        self.rebound: dict[Any, Name] = {}
        """Names under which others put another tensor between calls, by key."""
        self.numbers: dict[Any, NumberPlace] = {}
        """Places in which the step moves a number."""
        self._renumbered: Counter[Any] = Counter()
        """Writes of a number by code outside of the step, by the place's key."""
        self.reads_values = False
        """The step computes with values of tensors."""
        self._strays: dict[Any, Stray] = {}
        """Places where a step keeps tensors that a scan does not find."""
        self._warned_modules: WeakSet[nn.Module] = WeakSet()
        """Modules that no attribute holds, of which was warned."""
        self._announced_calls: set[Hashable] = set()
        """Keys of arguments for which `debug` has said which modules are called."""

    @property
    def owner(self) -> Any:
        """The Graph.

        Raises:
            ReferenceError: it is gone.
        """
        found = self._owner()
        if found is None:
            raise ReferenceError(f"{self.name} is gone")
        return found

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers that the Graph was given, and those that `build` was seen to step."""
        return self.trained.optimizers

    @property
    def own_update(self) -> bool:
        """True when `build` takes the optimizers' steps itself."""
        return self.trained.own_update

    @property
    def scaler(self) -> Scaler | None:
        """The grad scaler that the Graph was given."""
        return self.trained.scaler

    @property
    def build(self) -> Callable[..., Any]:
        """The Graph's `build`, which may be replaced."""
        found: Callable[..., Any] = self.owner.build
        return found

    @property
    def build_function(self) -> object:
        """The function of `build`."""
        return getattr(self.build, "__func__", None)

    @property
    def options(self) -> Options:
        """The options that hold now."""
        return self.config.options

    @property
    def trains(self) -> bool:
        """True when the Graph steps optimizers that it was given."""
        return bool(self.optimizers) and not self.own_update

    # --- the live state ---------------------------------------------------------------------------

    def scan(self) -> Step:
        """The step with all its live state, scanned now."""
        if not (self.own_update or self.optimizers or self.scaler):
            self._find_own_steps()
        self.cover()
        scaler = None if self.own_update else self.scaler
        return Step.scan(
            self.modules,
            self.optimizers,
            scaler,
            own_update=self.own_update,
            containers=self.stray_containers(),
            replicas=self.replicas,
            numbers=list(self.numbers.values()),
            reads_values=self.reads_values,
            schedulers=discover(self.build).schedulers if self.own_update else (),
        )

    def add(self, optimizer: Optimizer) -> None:
        """Step an optimizer in each call, from this one on where `build` adds it."""
        self.optimizers.append(optimizer)
        self.trained.added += (id(optimizer),)

    def cover(self) -> bool:
        """Cut parameters into parts, where that is wanted; True when there was one."""
        options = self.config.options
        staged = staged_modules(self.modules, options.stages)
        if self.replicas.shards is None:
            shards = shards_of(list(staged), options.zero, options.data_parallel)
            if shards is None:
                return False
            self.replicas.shards = shards
            self.config._set(zero=shards.zero)
        return self.replicas.shards.cover(staged, self.optimizers)

    def held(self) -> state.Held:
        """The objects that have a state."""
        return state.Held(self.modules, self.optimizers, list(self.schedulers), self.scaler)

    def _find_own_steps(self) -> None:
        """A `build` that names optimizers and ``step`` steps them, if not in its first call."""
        if named := steps_of(self.build):
            self.trained.own_update = True
            self.optimizers.extend(named)
            self.config._set(training=True)

    def stray_containers(self) -> list[tuple[str, Any]]:
        """The containers outside of modules and optimizers that hold tensors of the step."""
        found = {key: stray.container() for key, stray in self._strays.items()}
        self._strays = {key: stray for key, stray in self._strays.items() if found[key]}
        return [container for container in found.values() if container is not None]

    def scaler_started(self) -> AbstractContextManager[None]:
        """In the block, the scaler's scale is a tensor, as after its first step."""
        return amp.started(None if self.own_update else self.scaler, self.optimizers)

    def moved_by_build(self) -> Sequence[Any]:
        """Objects besides modules and optimizers whose attributes `build` moves."""
        return ()

    def owners(self) -> list[Any]:
        """All objects whose attributes `build` moves, besides modules and optimizers."""
        return [self.owner, self.trained, *self.moved_by_build()]

    def snapshot(
        self, step: Step, call: Call | None = None, unwritten: AbstractSet[int] = frozenset()
    ) -> Snapshot:
        """A snapshot of all that a step may change, with the arguments of ``call``.

        Without one it is to be kept: schedulers are in it, and no tensor of ``unwritten``.
        """
        tensors = [leaf.value for _, leaf in step.tensors()]
        scalers = [] if self.scaler is None else [self.scaler]
        owners = [self.owner, *step.modules.values(), *self.optimizers, *scalers]
        owners += self.moved_by_build()
        if call is not None:
            found = Snapshot([*owners, self.trained], [*tensors, *call.tensors])
        else:  # the scaler stays: one that came later is a difference that a rerun has to show
            found = Snapshot([*owners, *self.schedulers.parts()], tensors, unwritten=unwritten)
            found.keep(self.optimizers)
        found.keep(self._announced_calls)
        for leaf in (step.leaves[position] for position in step.moving):
            found.keep_number(*innermost(leaf.root, leaf.path), leaf.value)
        return found

    @contextmanager
    def undone(self, call: Call) -> Iterator[Step]:
        """Undo every effect of the block on state, arguments and random generators."""
        with self.scaler_started(), paused():  # callbacks of the collector are none of the step
            step = self.scan()
            contents = Contents(call.args, call.kwargs)
            before, torn = self.snapshot(step, call), self.signals.torn
            try:
                with contents.kept(), before.kept():
                    yield step
            finally:
                self.signals.torn = torn if before.is_back else CUT_SHORT

    # --- its run in eager -------------------------------------------------------------------------

    def check_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise Python's own error for arguments that `build` does not take, where it is that."""

    def begin_eager(self, call: Call) -> None:
        """A call is about to run in eager.

        Raises:
            RanksDiffer: the ranks of a pipeline do not begin with the same.
        """
        options = self.config.options
        if not options.stages:
            return
        found = dict(zip(paths(call.args, call.kwargs), call.tensors, strict=True))
        if self.last_call is None:
            found |= {str(leaf.fqn): leaf.value for _, leaf in self.scan().tensors()}
        check_alike(options, found)

    def note(self, outcome: Outcome) -> bool:
        """Take note of optimizers that `build` has stepped, and of places; True for new places."""
        known = len(self._strays) + len(self.rebound) + len(self.numbers) + self.reads_values
        self.trained.own_update |= outcome.own_update
        known_ids = set(map(id, self.optimizers))  # `build` may have added what it steps
        self.optimizers.extend(one for one in outcome.adopted if id(one) not in known_ids)
        self._strays.update({stray.key: stray for stray in outcome.strays})
        if self.own_update and self.last_call is not None:
            self.rebound.update(rebound_between(self.last_call[0], outcome))
            self._count_renumbered(self.last_call[0], outcome)
        if outcome.adopted:
            self.config._set(training=True)
        if self.config.options.micro_batches == 1:
            self.numbers.update({one.key: one for one in outcome.numbers})
        before = None if self.last_call is None else self.last_call[0]
        if outcome.reads_values or outcome.varies(before):
            self.reads_values = True
        return len(self._strays) + len(self.rebound) + len(self.numbers) + self.reads_values > known

    def _count_renumbered(self, before: Outcome, outcome: Outcome) -> None:
        """A number that others move in call after call is an input, as one that the step moves."""
        if self.config.options.micro_batches > 1:
            return
        known = set(map(id, containers(self.optimizers)))
        for place in renumbered_between(before, outcome):
            if place.key[0] in known:  # an input already, as a number of the optimizer's
                continue
            self._renumbered[place.key] += 1
            if self._renumbered[place.key] >= _OFTEN:
                self.numbers.setdefault(place.key, place)

    def take(
        self,
        step: Step,
        call: Call,
        observed: bool,
        strict: bool = False,
        owned: Sequence[torch.Tensor] = (),
        *,
        compared: bool = False,
    ) -> Outcome:
        """Run a call in eager. ``observed``: record it; the others are those of `record.take`.

        ``compared``: a program is to come to the same.
        """
        if self.config.options.micro_batches > 1:  # each of them moves the numbers
            step = step.without_numbers()
        given = call.unbound
        opened = self.opened(not self.own_update)
        replicated = self.replicated(step)
        # A call that is neither is the user's own, compiled where he has compiled it.
        plain = uncompiled() if observed or compared else watched()
        with ExitStack() as stack:
            for one in (self._taken_back(), self.building(), plain, opened, replicated):
                stack.enter_context(one)
            observer = stack.enter_context(self._announced(call, observed))
            outcome = take(
                step,
                self.build if given is None else partial(self.build, *given[0], **given[1]),
                call,
                watched=[(self.name, self.owner)],
                graph_class=ModuleHolder,
                depth=self.blocks.deepest_stack,
                options=self.config.options,
                observer=observer,
                observed=observed,
                strict=strict,
                owned=owned,
                may_rest=self.progress.step > 0,
                warned=self._warned_modules,
                built=self._built,
                optimizers=self.optimizers,
            )
        if observer is not NOBODY:
            announce.returned(self.printer(), self.name, outcome.returned)
        return outcome

    @contextmanager
    def _taken_back(self) -> Iterator[None]:
        """Where the block raises before the update, the step trains with what it did before."""
        optimizers, before = list(self.optimizers), dict(vars(self.trained))
        try:
            yield
        except BaseException:
            if not self.signals.torn:
                vars(self.trained).update(before)
                self.optimizers[:] = optimizers
            raise

    def printer(self) -> Stages:
        """The printer of stages, at the current debug level."""
        return Stages(self.name, type(self.owner).__name__, self.blocks.debug().level())

    def _built(self, returned: bool) -> None:
        """`build` has run: what follows is not taken back."""
        self.schedulers.check_loss(returned)
        self.signals.open, self.signals.torn = False, CUT_SHORT

    def telling(self) -> AbstractContextManager[None]:
        """In the block, warnings are also printed, from debug level 0 on."""
        return _SILENT if self.blocks.is_silent else warnings_told(self.printer().warning)

    @contextmanager
    def replicated(self, step: Step) -> Iterator[None]:
        """A call of a step begins: its replicas are equal, and average where it updates itself."""
        options, trains = self.config.options, self.own_update or self.optimizers
        self.replicas.groups = groups_of(step, options) if trains else []
        if self.replicas.groups and options.buckets is not None:
            raise NotSupported(
                "set_shape_buckets runs steps that it takes back, and other ranks would not "
                "answer: it does not go with data parallel."
            )
        self.replicas.begin()
        itself = self.own_update or not self.optimizers
        early = options.micro_batches == 1 and not any(s.ranks for s in options.stages)
        with running(step, updates_itself=itself, early=early):
            yield

    @contextmanager
    def _announced(self, call: Call, observed: bool) -> Iterator[Observer]:
        """From debug level 1 on, print modules and ops of the first call of a signature.

        Yields the observer of the recording that prints them.
        """
        if not observed or self.blocks.most_debug < 1 or call.key in self._announced_calls:
            yield NOBODY
            return
        self._announced_calls.add(call.key)
        stages = self.printer()
        given = announce.arguments(stages, self.name, call)
        building = announce.Building(stages, self.modules, self.blocks.debug, given)
        try:
            with stages.part("building graph modules"):
                yield building
        finally:
            building.ends()

    @contextmanager
    def opened(self, may_raise: bool) -> Iterator[None]:
        """In the block, handlers of signals may run in the user's code, if it ``may_raise``."""
        self.signals.open = may_raise
        try:
            yield
        finally:
            self.signals.open = False

    @contextmanager
    def building(self, *, patched: bool = True) -> Iterator[None]:
        """In the block `build` may run: blocks give bare modules, optimizer steps are the Graph's.

        Args:
            patched: classes are patched here, which no other thread may do meanwhile.
        """
        with patching.begun() if patched else nullcontext(), self.owner._inside_build():
            self.schedulers.tracing(True)
            token = in_build.set(self)
            try:
                yield
            finally:
                in_build.reset(token)
                self.schedulers.tracing(False)
