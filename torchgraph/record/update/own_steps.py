"""Optimizers, schedulers and scalers that the recorded function steps itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.weak import WeakIdKeyDictionary

from ... import library
from ..._torch import storage_id
from ..._torch.listening import not_listening
from ..._torch.names import patched
from ..._torch.optimizers import (
    groups_of,
    scaler_attribute,
    schedulers_in,
    step_hooks,
    steps_counted,
)
from ...collection import weakly
from ...guards import Read
from ...live.step import SCALER_NUMBERS, SCALER_TENSORS, Step
from ...optimizers import fused
from ...optimizers.rules import allocates_slots, eager_branch, refusal
from ...options.options import Options
from ...structure.nested import map_nested
from ..amp import Autocast
from ..ops.recorder import Recorder
from ..tape.tape import Args, Arguments, Kwargs
from ..tape.trail import Trail
from .numbers import Numbers
from .trial import tried
from .update import mark_gradients, noting_step, symbolic_math, trained


class OwnSteps:
    """The steps of optimizers, schedulers and scalers that `build` takes itself in one call.

    Args:
        begin: called with the first optimizer; refuses where the Graph takes the step.
    """

    def __init__(
        self,
        step: Step,
        recorder: Recorder,
        trail: Trail,
        numbers: Numbers,
        autocast: Autocast,
        options: Options,
        begin: Callable[[Optimizer], None],
    ) -> None:
        self._step, self._recorder, self._trail = step, recorder, trail
        self._numbers, self._autocast, self._options = numbers, autocast, options
        self._begin = begin
        self.observed = True
        self.began = False
        self.stepped: list[Optimizer] = []
        self.actions: list[tuple[LRScheduler, Args, Kwargs]] = []
        """(scheduler, args, kwargs), tensors as copies of the step's own."""
        self.moved: set[str] = set()
        """Tensors in the param groups of optimizers whose schedulers have stepped."""
        self.unknown: list[Optimizer] = []
        """Optimizers unknown to the scan of the step, which the next scan includes."""
        self._made: MutableMapping[Optimizer, None] = WeakIdKeyDictionary()
        """Optimizers that the step itself makes: their steps are ops like others."""
        self.scaler_reads: list[Read] = []
        """(name, scaler, attribute, value) of the state from which scalers update."""
        self._running: list[tuple[Optimizer, ExitStack]] = []
        self._before: list[tuple[dict[str, object], dict[str, object]]] = []
        """Attributes and param groups from before a scheduler's step."""
        self._scheduler_writes: set[int] = set()
        """Optimizers, by id, whose scheduler has stepped."""
        self._acting = False
        numbers.scheduler_writes.give_up = weakly(self._read_too_late)
        self._thread = threading.get_ident()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Intercept the steps and updates of this thread's optimizers, schedulers and scalers."""
        with ExitStack() as stack:
            stack.callback(register_optimizer_step_pre_hook(self._enter).remove)
            stack.callback(register_optimizer_step_post_hook(self._leave).remove)
            made = self._noting_made(Optimizer.__init__)
            stack.enter_context(patched(Optimizer, "__init__", made))
            for cls in classes_with(LRScheduler, "step"):
                stack.enter_context(patched(cls, "step", self._acts(vars(cls)["step"])))
            for cls in classes_with(GradScaler, "update"):
                noting = self._noting_scaler(vars(cls)["update"])
                stack.enter_context(patched(cls, "update", noting))
            if self.observed:
                trying = tried(self._step.optimizers, self._recorder, self._stop)
                stack.enter_context(trying)
            before = [(one, steps_counted(one)) for one in self._step.schedulers]
            try:
                yield
            finally:
                while self._running:  # of a step that raised
                    self._running.pop()[1].close()
            self._check_schedulers(before)

    # --- optimizers -------------------------------------------------------------------------------

    def _enter(self, optimizer: Optimizer, args: Args, kwargs: Kwargs) -> Arguments | None:
        if threading.get_ident() != self._thread:
            return None
        if not self.began:
            self._begin(optimizer)
        self._check(optimizer)
        self.began, self._recorder.strict = True, False  # an update is not taken back
        if optimizer not in self._made and not self._knows(optimizer):
            self._recorder.give_up(
                f"{type(optimizer).__name__} updates a parameter that the step has made",
                passing=True,
            )
        args, kwargs = self._with_closure(optimizer, args[1:], dict(kwargs))
        self._running.append((optimizer, self._around(optimizer)))
        return (optimizer, *args), kwargs

    def _leave(self, optimizer: Optimizer, *_: object) -> None:
        known = any(known is optimizer for known in self.stepped)
        if self._stop(optimizer) and not known and optimizer not in self._made:
            self.stepped.append(optimizer)

    def _stop(self, optimizer: Optimizer) -> bool:
        """End the step of an optimizer, also by an error; False where none was followed."""
        follows = bool(self._running) and self._running[-1][0] is optimizer
        if follows:
            self._running.pop()[1].close()
        return follows

    def _check(self, optimizer: Optimizer) -> None:
        give_up = self._recorder.give_up
        name = type(optimizer).__name__
        known = any(optimizer is known for known in (*self._step.optimizers, *self.unknown))
        if not known and optimizer not in self._made:
            self.unknown.append(optimizer)
        refused = refusal(optimizer, given=True, where=self._trail.line)
        if refused is not None:
            self._recorder.refuse(refused)
        if id(optimizer) in self._scheduler_writes:
            at = f" (at {self._trail.line})" if self._trail.line else ""
            give_up(
                f"a scheduler of {name} steps before {name}.step(){at}: call scheduler.step() "
                "after the last optimizer.step()"
            )

    def _noting_made(self, original: Callable[..., None]) -> Callable[..., None]:
        def init(optimizer: Optimizer, *args: object, **kwargs: object) -> None:
            original(optimizer, *args, **kwargs)
            if threading.get_ident() == self._thread:
                self._made[optimizer] = None

        return init

    def _knows(self, optimizer: Optimizer) -> bool:
        """False where its parameters changed since the step began."""
        return all(id(parameter) in self._step.index for parameter in trained(optimizer))

    def _around(self, optimizer: Optimizer) -> ExitStack:
        stack = ExitStack()
        stack.enter_context(self._trail.update())
        stack.enter_context(self._autocast.backward(accumulates=True))
        stack.enter_context(eager_branch(optimizer))
        if self.observed and not self._recorder.gave_up and not self.unknown:
            stack.enter_context(fused.recorded())
            stack.enter_context(symbolic_math([optimizer]))
            if optimizer in self._made:
                return stack
            if self._options.marks_gradients and _only_reads_gradients(optimizer):
                stack.enter_context(self._marked(optimizer))
            stack.enter_context(noting_step(self._step, self._recorder, self._trail, optimizer))
            stack.enter_context(self._numbers.in_place([optimizer]))
        return stack

    @contextmanager
    def _marked(self, optimizer: Optimizer) -> Iterator[None]:
        """Let the step read each gradient through an op that names its parameter.

        Only for steps that are known not to write gradients: it reads copies.
        """
        own = trained(optimizer)
        before = [parameter.grad for parameter in own]
        mark_gradients(library.gradient, optimizer, self._step)
        try:
            yield
        finally:
            for parameter, gradient in zip(own, before, strict=True):
                parameter.grad = gradient

    def _with_closure(self, optimizer: Optimizer, args: Args, kwargs: Kwargs) -> Arguments:
        """The arguments of ``step(closure)``, with a closure that runs as user code."""
        closure = args[0] if args else kwargs.get("closure")
        if not callable(closure):
            return args, kwargs

        def run() -> object:
            leaked = self._numbers.leaked
            leaked.pausing = True
            self._running.pop()[1].close()
            leaked.pausing = False
            try:
                return closure()
            finally:
                self._running.append((optimizer, self._around(optimizer)))

        run.__qualname__ = getattr(closure, "__qualname__", type(closure).__qualname__)
        return ((run, *args[1:]), kwargs) if args else (args, {**kwargs, "closure": run})

    @property
    def adopted(self) -> list[Optimizer]:
        """The optimizers to include in later scans: unknown ones, and those that a Graph keeps.

        A function's are found by their names; of a Graph whose `build` steps optimizers itself,
        those that outlive the step are kept. One that `build` only adds is the Graph's to step.
        """
        kept = tuple(self._made) if self.began and not self._step.own_update else ()
        return [*self.unknown, *kept]

    def put_back(self) -> None:
        """Restore schedulers and the values that they set."""
        for held, before in reversed(self._before):
            held.clear()
            held.update(before)

    # --- grad scalers -----------------------------------------------------------------------------

    def _noting_scaler(self, original: Callable[..., object]) -> Callable[..., None]:
        """Log the reads of ``update``, in torch's code, where names are not watched."""

        def update(scaler: GradScaler, *args: object, **kwargs: object) -> None:
            original(scaler, *args, **kwargs)
            if threading.get_ident() == self._thread:
                found = list(map(scaler_attribute, (*SCALER_TENSORS, *SCALER_NUMBERS)))
                own = vars(scaler)
                self.scaler_reads += [("scaler", scaler, n, own[n]) for n in found if n in own]

        return update

    # --- schedulers -------------------------------------------------------------------------------

    def _acts(self, original: Callable[..., object]) -> Callable[..., object]:
        def step(scheduler: LRScheduler, *args: object, **kwargs: object) -> object:
            plain = self._acting or threading.get_ident() != self._thread or not self.observed
            if plain or getattr(scheduler, "optimizer", None) in self._made:
                return original(scheduler, *args, **kwargs)
            self._acting = True
            try:
                return self._act(original, scheduler, args, kwargs)
            finally:
                self._acting = False

        return step

    def _check_schedulers(self, before: Sequence[tuple[LRScheduler, object]]) -> None:
        """Refuse steps that were not followed: of ``after = scheduler.step``, bound before."""
        acted = {id(inner) for one, *_ in self.actions for inner in _with_inner(one)}
        for one, count in before if self.observed else ():
            if id(one) not in acted and steps_counted(one) != count:
                self._recorder.give_up(
                    f"it steps a {type(one).__name__} by a method that was bound before: call "
                    "scheduler.step() itself",
                    lenient=True,
                )

    def _read_too_late(self, text: str) -> None:
        at = f" (at {self._trail.line})" if self._trail.line else ""
        self._recorder.give_up(_too_late(text, at), passing=True)

    def _act(
        self, original: Callable[..., object], scheduler: LRScheduler, args: Args, kwargs: Kwargs
    ) -> object:
        with torch.no_grad():
            kept = map_nested((args, kwargs), torch.Tensor, lambda t: t.detach().clone())
        every = list(_with_inner(scheduler))
        moved = [one.optimizer for one in every if getattr(one, "optimizer", None) is not None]
        optimizers = [one for one in self._step.optimizers if any(one is o for o in moved)]
        held = [*map(vars, every), *(group for one in moved for group in groups_of(one))]
        self._before += [(one, dict(one)) for one in held]
        tensors = [tensor for one in optimizers for tensor in _tensors(one)]
        with not_listening():
            found = original(scheduler, *args, **kwargs)
        self.actions.append((scheduler, *kept))
        for one in (scheduler, *held):
            own = one if isinstance(one, dict) else vars(one)
            self._numbers.scheduler_writes.note(
                one, [key for key, set_ in own.items() if _is_set(set_)]
            )
        for one in optimizers:
            self._scheduler_writes.add(id(one))
            self._numbers.accept(one)
        self._note_moved(scheduler, tensors, [t for one in optimizers for t in _tensors(one)])
        return found

    def _note_moved(
        self, scheduler: LRScheduler, before: list[torch.Tensor], after: list[torch.Tensor]
    ) -> None:
        """Note the tensors of param groups from before and after a scheduler's step."""
        leaves, index = self._step.leaves, self._step.index
        # Not only those that it writes now: a plateau is met in few steps.
        self.moved |= {leaves[index[id(one)]].fqn for one in before if id(one) in index}
        text = f"what {type(scheduler).__name__} keeps in a tensor"
        self._recorder.late |= {storage_id(one): _too_late(text) for one in after}
        if list(map(id, before)) != list(map(id, after)):
            at = f" (at {self._trail.line})" if self._trail.line else ""
            self._recorder.give_up(
                f"{type(scheduler).__name__} puts a tensor into a param group, or takes one out"
                f"{at}: write into the tensor that is there",
                passing=True,
            )


def _too_late(text: str, at: str = "") -> str:
    return (
        f"it reads {text} after scheduler.step() has set it{at}: read it before that, or step "
        "the scheduler after the step"
    )


def _only_reads_gradients(optimizer: Optimizer) -> bool:
    return allocates_slots(optimizer) and not any(step_hooks(optimizer))


def classes_with(base: type, method: str) -> list[type]:
    """``base`` and the classes below it with a ``method`` of their own."""
    found: dict[type, None] = {}
    pending: list[type] = [base]
    while pending:
        cls = pending.pop()
        found[cls] = None
        subclasses: list[type] = cls.__subclasses__()
        pending.extend(sub for sub in subclasses if sub not in found)
    return [cls for cls in found if method in vars(cls)]


def _with_inner(scheduler: LRScheduler) -> Iterator[LRScheduler]:
    """A scheduler and its nested schedulers."""
    yield scheduler
    for one in schedulers_in(scheduler):
        yield from _with_inner(one)


def _is_set(value: object) -> bool:
    """True for values that schedulers set: numbers, and lists of them."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_set, value))
    return value is None or isinstance(value, (bool, int, float, torch.Tensor))


def _tensors(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in groups_of(optimizer):
        for key, value in group.items():
            if key != "params" and isinstance(value, torch.Tensor):
                yield value
