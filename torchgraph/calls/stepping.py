"""What the step of a Graph consists of, and running it as eager runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any
from weakref import WeakSet

from torch import nn
from torch.optim import Optimizer

from .. import amp
from .._torch.surroundings import uncompiled
from ..amp import Scaler
from ..blocks.holder import ModuleHolder
from ..config import GraphConfig
from ..errors import BuildNotOverridden
from ..guards import Name, patching
from ..live import state
from ..live.discovery import steps_of
from ..live.inputs import Call, Inputs
from ..live.step import Step
from ..record.compare.outcome import Outcome, rebound_between
from ..record.host.exits import Stray
from ..record.take import take
from .schedule import Schedulers

_in_build: ContextVar[bool] = ContextVar("_in_build", default=False)


def building() -> bool:
    """True inside of the `build` of a Graph that is recorded."""
    return _in_build.get()


class Stepping(ModuleHolder):
    """The modules, optimizers, scaler and schedulers of a Graph, and its `build`.

    Args:
        name: the Graph's.
        module_text, block_text: as for `ModuleHolder`.
    """

    def __init__(
        self, name: str, module_text: Callable[[str], str], block_text: Callable[[str], str]
    ) -> None:
        super().__init__(module_text, block_text)
        self._graph_name = name
        self._optimizers: list[Optimizer] = []
        self._scaler: Scaler | None = None
        self._rebound: dict[Any, Name] = {}
        """Names under which others put another tensor between calls, by key."""
        self._strays: dict[Any, Stray] = {}
        """Places where a step keeps tensors, besides those that a scan finds."""
        self._driven = False
        """True when `build` takes the optimizers' steps itself."""
        self._schedulers = Schedulers()
        self._inputs = Inputs(self.build)
        self._progress = state.Progress()
        self._strangers: WeakSet[nn.Module] = WeakSet()
        """Modules that no attribute holds, of which was warned."""
        self._last_call: tuple[Outcome, Call] | None = None
        """The last call that ran as eager runs it, without its data."""
        self.config = GraphConfig()

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """The step: forward, ``loss.backward()``, what to return. To be overridden."""
        raise BuildNotOverridden(f"{type(self).__name__} does not define build().")

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
        """Run a call as eager runs it. ``heard``: write it down; ``strict``: as `take` has it."""
        given = call.unbound
        with self._building(), uncompiled():
            return take(
                step,
                self.build if given is None else partial(self.build, *given[0], **given[1]),
                call,
                watched=[(self._graph_name, self)],
                graph_class=Stepping,
                depth=self._block_tree.debug().max_py_stack_depth,
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
        with patching.begun(), self._inside_build():
            self._schedulers.tracing(True)
            token = _in_build.set(True)
            try:
                yield
            finally:
                _in_build.reset(token)
                self._schedulers.tracing(False)
