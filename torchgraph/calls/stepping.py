"""The step of a Graph: its modules, optimizers and other state, and its run in eager."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any, ClassVar
from weakref import WeakSet

import torch
from torch import nn
from torch.optim import Optimizer

from .. import amp
from .._torch.surroundings import uncompiled
from ..amp import Scaler
from ..blocks.holder import ModuleHolder
from ..config import GraphConfig
from ..debug.stages import Stages
from ..distributed.replicas import Replicas
from ..distributed.zero.cover import shards_of
from ..errors import BuildNotOverridden, NotSupported
from ..guards import Name, patching
from ..lines import warnings_told
from ..live import state
from ..live.discovery import steps_of
from ..live.inputs import Call, Inputs
from ..live.named import NumberPlace
from ..live.replicas import groups_of, running
from ..live.step import Step
from ..options.checking import nearest, shown
from ..pipeline.layout import staged_modules
from ..record.compare.outcome import Outcome, rebound_between, renumbered_between
from ..record.side_effects.loop_carried import Stray
from ..record.take import take
from ..record.tape.watch import NOBODY, Observer
from ..replay.interrupts import CUT_SHORT, SignalsWait
from . import announce
from .schedule import Schedulers

_SILENT = nullcontext()
_OFTEN = 2
"""Recordings that each found another number in a place before it counts as one that moves."""
in_build: ContextVar[bool] = ContextVar("in_build", default=False)


def building() -> bool:
    """True inside of the `build` of a Graph that is recorded."""
    return in_build.get()


class Stepping(ModuleHolder):
    """The modules, optimizers, scaler and schedulers of a Graph, and its `build`.

    What leads to programs lies in slots, here and in the classes below: programs hold the dict of
    the attributes that they guard, and a dict that led back to them would wait for a collection.

    Args:
        name: the Graph's.
        module_text, block_text: as for `ModuleHolder`.
    """

    __slots__ = (
        "_last_call",
        "_numbers",
        "_reads_values",
        "_rebound",
        "_renumbered",
        "_replicas",
        "_strays",
    )

    _config_class: ClassVar[type[GraphConfig]] = GraphConfig
    """The class of `config`."""

    def __init__(
        self, name: str, module_text: Callable[[str], str], block_text: Callable[[str], str]
    ) -> None:
        super().__init__(module_text, block_text)
        self._graph_name = name
        self._optimizers: list[Optimizer] = []
        self._scaler: Scaler | None = None
        self._rebound: dict[Any, Name] = {}
        """Names under which others put another tensor between calls, by key."""
        self._numbers: dict[Any, NumberPlace] = {}
        """Places in which the step moves a number."""
        self._renumbered: Counter[Any] = Counter()
        """Writes of a number by code outside of the step, by the place's key."""
        self._reads_values = False
        """The step computes with values of tensors."""
        self._strays: dict[Any, Stray] = {}
        """Places where a step keeps tensors that a scan does not find."""
        self._own_update = False
        """True when `build` takes the optimizers' steps itself."""
        self._replicas = Replicas()
        self._schedulers = Schedulers()
        if isinstance(self.build, type) or not callable(self.build):
            found = shown(self.build)
            raise BuildNotOverridden(f"{type(self).__name__}.build is {found}, not a function.")
        self._inputs = Inputs(self.build)
        self._progress = state.Progress()
        self._new_signatures: WeakSet[nn.Module] = WeakSet()
        """Modules that no attribute holds, of which was warned."""
        self._announced_calls: set[Hashable] = set()
        """Keys of arguments for which `debug` has said which modules are called."""
        self._last_call: tuple[Outcome, Call] | None = None
        """The last call that ran as eager runs it, without its data."""
        self._signals = SignalsWait(gives_in=True)
        """Ctrl-C waits while this is entered; where the step can be taken back it is open."""
        self.config = self._config_class()

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """The step: forward, ``loss.backward()``, what to return. To be overridden."""
        defined = {name for cls in type(self).__mro__ for name in vars(cls)}
        own = sorted(defined - {name for cls in Stepping.__mro__ for name in vars(cls)})
        near = "forward" if "forward" in own else nearest("build", own)
        but = f", but {near}()" if near else ""
        raise BuildNotOverridden(f"{type(self).__name__} does not define build(){but}.")

    def _scan(self) -> Step:
        """The step with all its live state, scanned now."""
        if not (self._own_update or self._optimizers or self._scaler):
            self._find_own_steps()
        self._cover()
        scaler = None if self._own_update else self._scaler
        return Step.scan(
            self._modules,
            self._optimizers,
            scaler,
            own_update=self._own_update,
            containers=self._stray_containers(),
            replicas=self._replicas,
            numbers=list(self._numbers.values()),
            reads_values=self._reads_values,
        )

    def _cover(self) -> bool:
        """Cut parameters into parts, where that is wanted; True when there was one."""
        options = self.config.options
        staged = staged_modules(self._modules, options.stages)
        if self._replicas.shards is None:
            shards = shards_of(list(staged), options.zero, options.data_parallel)
            if shards is None:
                return False
            self._replicas.shards = shards
            self.config._set(zero=shards.zero)
        return self._replicas.shards.cover(staged, self._optimizers)

    def _held(self) -> state.Held:
        """The objects that have a state."""
        return state.Held(self._modules, self._optimizers, list(self._schedulers), self._scaler)

    def _find_own_steps(self) -> None:
        """A `build` that names optimizers and ``step`` steps them, if not in its first call."""
        if named := steps_of(self.build):
            self._own_update = True
            self._optimizers.extend(named)
            self.config._set(training=True)

    def _stray_containers(self) -> list[tuple[str, Any]]:
        found = {key: stray.container() for key, stray in self._strays.items()}
        self._strays = {key: stray for key, stray in self._strays.items() if found[key]}
        return [container for container in found.values() if container is not None]

    def _scaler_started(self) -> AbstractContextManager[None]:
        return amp.started(None if self._own_update else self._scaler, self._optimizers)

    def _moved_by_build(self) -> Sequence[Any]:
        """Objects besides modules and optimizers whose attributes `build` moves."""
        return ()

    def _drive(self, outcome: Outcome) -> bool:
        """Take note of optimizers that `build` has stepped, and of places; True for new places."""
        known = len(self._strays) + len(self._rebound) + len(self._numbers) + self._reads_values
        self._own_update = self._own_update or outcome.own_update
        self._optimizers.extend(outcome.adopted)
        self._strays.update({stray.key: stray for stray in outcome.strays})
        if self._own_update and self._last_call is not None:
            self._rebound.update(rebound_between(self._last_call[0], outcome))
            self._count_renumbered(self._last_call[0], outcome)
        if outcome.adopted:
            self.config._set(training=True)
        if self.config.options.micro_batches == 1:
            self._numbers.update({one.key: one for one in outcome.numbers})
        before = None if self._last_call is None else self._last_call[0]
        if outcome.reads_values or outcome.varies(before):
            self._reads_values = True
        return (
            len(self._strays) + len(self._rebound) + len(self._numbers) + self._reads_values > known
        )

    def _count_renumbered(self, before: Outcome, outcome: Outcome) -> None:
        """A number that others move in call after call is an input, as one that the step moves."""
        if self.config.options.micro_batches > 1:
            return
        known = {
            id(holder)
            for optimizer in self._optimizers
            for holder in (*optimizer.param_groups, *optimizer.state.values())
        }
        for place in renumbered_between(before, outcome):
            if place.key[0] in known:  # an input already, as a number of the optimizer's
                continue
            self._renumbered[place.key] += 1
            if self._renumbered[place.key] >= _OFTEN:
                self._numbers.setdefault(place.key, place)

    def _take(
        self,
        step: Step,
        call: Call,
        observed: bool,
        strict: bool = False,
        owned: Sequence[torch.Tensor] = (),
    ) -> Outcome:
        """Run a call in eager. ``observed``: record it; the other arguments are those of `take`."""
        if self.config.options.micro_batches > 1:  # each of them moves the numbers
            step = step.without_numbers()
        given = call.unbound
        opened = self._opened(not self._own_update)
        replicated = self._replicated(step)
        with ExitStack() as stack:
            for one in (self._building(), uncompiled(), opened, replicated):
                stack.enter_context(one)
            observer = stack.enter_context(self._announced(call, observed))
            outcome = take(
                step,
                self.build if given is None else partial(self.build, *given[0], **given[1]),
                call,
                watched=[(self._graph_name, self)],
                graph_class=Stepping,
                depth=self._block_tree.deepest_stack,
                options=self.config.options,
                observer=observer,
                observed=observed,
                strict=strict,
                owned=owned,
                may_rest=self._progress.step > 0,
                warned=self._new_signatures,
                built=self._built,
            )
        if observer is not NOBODY:
            announce.returned(self._stages(), self._graph_name, outcome.returned)
        return outcome

    def _stages(self) -> Stages:
        """The printer of stages, at the current debug level."""
        return Stages(self._graph_name, type(self).__name__, self._block_tree.debug().level())

    def _built(self, returned: bool) -> None:
        """`build` has run: what follows is not taken back."""
        self._schedulers.check_loss(returned)
        self._signals.open, self._signals.torn = False, CUT_SHORT

    def _telling(self) -> AbstractContextManager[None]:
        """In the block, warnings are also printed, from debug level 0 on."""
        return _SILENT if self._block_tree.is_silent else warnings_told(self._stages().warning)

    @contextmanager
    def _replicated(self, step: Step) -> Iterator[None]:
        """A call of a step begins: its replicas are equal, and average where it updates itself."""
        options, trains = self.config.options, self._own_update or self._optimizers
        self._replicas.groups = groups_of(step, options) if trains else []
        if self._replicas.groups and options.buckets is not None:
            raise NotSupported(
                "set_shape_buckets runs steps that it takes back, and other ranks would not "
                "answer: it does not go with data parallel."
            )
        self._replicas.begin()
        itself = self._own_update or not self._optimizers
        early = options.micro_batches == 1 and not any(s.ranks for s in options.stages)
        with running(step, updates_itself=itself, early=early):
            yield

    @contextmanager
    def _announced(self, call: Call, observed: bool) -> Iterator[Observer]:
        """From debug level 1 on, print modules and ops of the first call of a signature.

        Yields the observer of the recording that prints them.
        """
        if not observed or self._block_tree.most_debug < 1 or call.key in self._announced_calls:
            yield NOBODY
            return
        self._announced_calls.add(call.key)
        stages = self._stages()
        given = announce.arguments(stages, self._graph_name, call)
        building = announce.Building(stages, self._modules, self._block_tree.debug, given)
        try:
            with stages.part("building graph modules"):
                yield building
        finally:
            building.ends()

    @contextmanager
    def _opened(self, may_raise: bool) -> Iterator[None]:
        """In the block, handlers of signals may run in the user's code, if it ``may_raise``."""
        self._signals.open = may_raise
        try:
            yield
        finally:
            self._signals.open = False

    @contextmanager
    def _building(self, *, patched: bool = True) -> Iterator[None]:
        """In the block `build` may run: blocks give bare modules, optimizer steps are the Graph's.

        Args:
            patched: classes are patched here, which no other thread may do meanwhile.
        """
        with patching.begun() if patched else nullcontext(), self._inside_build():
            self._schedulers.tracing(True)
            token = in_build.set(True)
            try:
                yield
            finally:
                in_build.reset(token)
                self._schedulers.tracing(False)
