"""The schedulers that a Graph steps for the user, once per call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import finalize

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from .._torch.optimizers import mark_step_called, schedulers_in
from ..errors import NotAnOptimizer, SchedulerNeedsLoss, SchedulerSteppedTwice


@dataclass
class _Counter:
    """Counts steps in eager. A hook of the optimizer holds it, and nothing that holds the hook."""

    eager_steps: int = 0
    """Steps of the optimizer outside of the Graph."""
    in_graph: bool = False

    def __call__(self, *_: Any) -> None:
        self.eager_steps += not self.in_graph


@dataclass
class _Scheduled:
    optimizer: Optimizer
    scheduler: LRScheduler
    counter: _Counter
    seen: tuple[int, int, Any] | None = None
    """(position of the scheduler, eager steps, its first rates) after the last call."""


class Schedulers:
    """Steps each scheduler after a call, and notices when the user does, too."""

    def __init__(self) -> None:
        self._entries: list[_Scheduled] = []
        self.needs_loss = False
        """True when one steps by the loss."""

    def __iter__(self) -> Any:
        return (entry.scheduler for entry in self._entries)

    def add(self, optimizer: Optimizer, scheduler: Any) -> None:
        """Take over the stepping of ``scheduler``.

        Raises:
            NotAnOptimizer: no scheduler, or one that belongs to another optimizer.
        """
        if not isinstance(scheduler, LRScheduler):
            raise NotAnOptimizer(
                f"lr_sch is a {type(scheduler).__name__}, not a torch.optim.lr_scheduler."
            )
        if scheduler.optimizer is not optimizer:
            raise NotAnOptimizer("lr_sch belongs to another optimizer than the one that is added.")
        entry = _Scheduled(optimizer, scheduler, _Counter())
        hook = optimizer.register_step_post_hook(entry.counter)
        finalize(self, hook.remove).atexit = False  # the optimizer may outlive the Graph
        self._entries.append(entry)
        self.needs_loss = self.needs_loss or isinstance(scheduler, ReduceLROnPlateau)

    def tracing(self, active: bool) -> None:
        """While a Graph takes a step, the optimizer's hooks do not count it as an eager one."""
        for entry in self._entries:
            entry.counter.in_graph = active

    def check(self) -> None:
        """Raise SchedulerSteppedTwice when the user stepped one between two calls of the Graph."""
        for entry in self._entries:
            if entry.seen is None:
                continue
            position, eager_steps, rates = entry.seen
            now = _position(entry.scheduler)
            stepped = now > position and entry.counter.eager_steps == eager_steps
            if stepped and _rates(entry.scheduler) is rates:  # else a state was loaded
                raise SchedulerSteppedTwice(
                    f"{type(entry.scheduler).__name__} was given to add_optimizer, so the Graph "
                    "steps it once per call, and it was stepped outside of the Graph as well."
                )

    def check_loss(self, returned: bool) -> None:
        """Raise SchedulerNeedsLoss when a scheduler needs a loss that build does not return."""
        if self.needs_loss and not returned:
            raise SchedulerNeedsLoss(
                "ReduceLROnPlateau needs the loss of the step, which build does not return."
            )

    def step(self, loss: Callable[[], Any], optimizers: Sequence[Optimizer]) -> None:
        """One step for each of ``optimizers``, which stepped in a call of this loss."""
        for optimizer in optimizers:  # also those whose scheduler the user steps
            mark_step_called(optimizer)
        for entry in self._entries:
            if not any(entry.optimizer is optimizer for optimizer in optimizers):
                continue
            if isinstance(entry.scheduler, ReduceLROnPlateau):
                entry.scheduler.step(loss().mean())  # over micro-batches; else a scalar already
            else:
                entry.scheduler.step()
            self._remember(entry)

    def parts(self) -> list[Any]:
        """The objects that change with a step: schedulers, those in them, what is noted of each."""
        found: list[Any] = []
        pending: list[Any] = list(self)
        while pending:
            found.append(pending.pop())
            pending += schedulers_in(found[-1])
        return [*found, *self._entries, *(entry.counter for entry in self._entries)]

    def forget(self) -> None:
        """Accept whatever position the schedulers have now: a checkpoint was loaded."""
        for entry in self._entries:
            entry.seen = None

    def _remember(self, entry: _Scheduled) -> None:
        scheduler = entry.scheduler
        entry.seen = (_position(scheduler), entry.counter.eager_steps, _rates(scheduler))


def _position(scheduler: Any) -> int:
    """How often a scheduler was stepped; a chain counts through its first member."""
    while not hasattr(scheduler, "last_epoch"):
        scheduler = schedulers_in(scheduler)[0]
    return int(scheduler.last_epoch)


def _rates(scheduler: Any) -> Any:
    """The list of rates that no step replaces, and ``load_state_dict`` does; None without one."""
    held = vars(scheduler)
    while "base_lrs" not in held and (inner := schedulers_in(scheduler)):
        scheduler = inner[0]
        held = vars(scheduler)
    return held.get("base_lrs", held.get("min_lrs"))
