"""Optimizer steps that raise over symbolic numbers: undone, and run with plain ones.

C code that needs Python's own numbers, as ``deque(maxlen=k)`` does, refuses symbolic ones. Whether
an error that the step catches is one of these, the plain run tells.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, MutableMapping, Sequence, Set as AbstractSet
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from ..._torch.listening import is_listening, not_listening
from ..._torch.optimizers import groups_of
from ...errors import GraphError, UnsupportedOptimizer
from ...lines import raised_at
from ...live.snapshot import Placed, Written
from ...optimizers.rules import allocates_slots
from ...random_state import RandomState
from ..ops.recorder import Recorder
from ..tape import number
from .attempt import HELD, Attempt, Ended

_MOST = 1 << 26
"""Limit of the bytes copied for an undo: a step mostly raises at its first parameter."""
_DEEPEST = 8
"""Limit of nesting: deeper containers are not copied beforehand."""
REJECTIONS = (TypeError, AttributeError, RuntimeError)
"""Exceptions raised by code that rejects symbolic numbers."""

_caught_plain: MutableMapping[Optimizer, set[Any]] = WeakIdKeyDictionary()
"""By optimizer, the errors that its step has also caught over plain numbers."""


class Trial(Attempt):
    """An optimizer's step, and the state before it."""

    def __init__(self, optimizer: Optimizer, raised: set[Any], outer: Attempt | None) -> None:
        """``raised``: (class, code, line) of the errors in the user's lines, up to now."""
        super().__init__(f"{type(optimizer).__name__}.step()", outer)
        self._raised, self._before = raised, frozenset(raised)
        self._expected = {*raised, *_caught_plain.get(optimizer, ())}
        self._random = RandomState()
        self._written = Written()
        self._bytes = 0
        self.moved: AbstractSet[object] = frozenset()
        """The named places that were changed before the step."""
        self._note(vars(optimizer))
        self._placed = [Placed(p) for group in groups_of(optimizer) for p in group["params"]]

    def keep(self, tensor: torch.Tensor) -> None:
        self.look()
        storage = tensor.untyped_storage()
        if self.is_whole and not self._written.has(storage):
            self._bytes += storage.nbytes()
            if self.is_whole:
                self._written.keep(storage)

    @property
    def is_whole(self) -> bool:
        """True as long as all writes can be undone."""
        return self._bytes <= _MOST

    def look(self) -> None:
        """End the step where it has caught an error, as long as it can be undone."""
        if self.caught and self.is_whole:
            raise Ended(self.said(self.caught))

    @property
    def caught(self) -> str:
        """The error that the step has caught and no earlier plain one."""
        kinds = (kind for kind, *_ in self._raised - self._expected)
        return next(
            (f"{k.__name__}, which it catches" for k in kinds if issubclass(k, REJECTIONS)), ""
        )

    def put_back(self) -> None:
        super().put_back()
        self._written.put_back()
        for one in self._placed:
            one.put_back()
        self._random.put_back()
        self._raised &= self._before

    def said(self, error: object) -> str:
        """The reason for plain numbers, in words."""
        if isinstance(error, Ended):
            return str(error)
        return f"{self._name} hands a number to code that takes no moving one: {error}"

    def _note(self, value: object, depth: int = 0) -> None:
        """The containers of an optimizer, and the attributes of objects that it holds."""
        other = isinstance(value, (torch.Tensor, torch.nn.Module, type)) or callable(value)
        if other or depth > _DEEPEST:
            return
        if isinstance(value, tuple):
            for item in value:
                self._note(item, depth + 1)
        held = value if isinstance(value, HELD) else getattr(value, "__dict__", None)
        if not isinstance(held, HELD) or id(held) in self._containers:
            return
        self.keep_object(held)
        for item in list(held.values() if isinstance(held, dict) else held):
            self._note(item, depth + 1)


@contextmanager
def tried(
    optimizers: Sequence[Optimizer], recorder: Recorder, leave: Callable[[Optimizer], object]
) -> Iterator[None]:
    """Run steps of users' optimizers again with plain numbers where symbolic ones make them raise.

    Args:
        leave: called with an optimizer whose step has raised.
    """
    with ExitStack() as stack:
        for one in optimizers:
            if not allocates_slots(one):
                stack.enter_context(_as_step(one, _trying(one, recorder, leave)))
        yield


@contextmanager
def _as_step(optimizer: Optimizer, step: Callable[..., object]) -> Iterator[None]:
    held = vars(optimizer)
    before = held.get("step")
    held["step"] = step
    try:
        yield
    finally:
        if held.get("step") is step:
            del held["step"]
            held.update({} if before is None else {"step": before})


def _trying(
    optimizer: Optimizer, recorder: Recorder, leave: Callable[[Optimizer], object]
) -> Callable[..., object]:
    original: Callable[..., object] = optimizer.step
    undo = recorder.undo

    @functools.wraps(original)
    def step(*args: object, **kwargs: object) -> object:
        once = any(map(callable, (*args, *kwargs.values())))  # a closure is not called again
        outer = undo.trial
        if once or recorder.gave_up or isinstance(outer, Trial) or not is_listening():
            return original(*args, **kwargs)
        trial = Trial(optimizer, undo.raised, outer if isinstance(outer, Attempt) else None)
        traced = sys.gettrace()
        try:
            return _tried(functools.partial(original, *args, **kwargs), optimizer, recorder, trial)
        except (Exception, Ended) as error:
            leave(optimizer)
            if not _undone(trial, error, recorder):
                raise
        finally:
            vars(trial).clear()  # its copies hold symbolic numbers
        if sys.gettrace() is not traced:  # Python takes away a trace function that raises
            sys.settrace(traced)
        found = original(*args, **kwargs)
        _caught_plain.setdefault(optimizer, set()).update(undo.raised)
        return found

    # A scheduler made meanwhile wraps the patched method for good.
    vars(step)["__func__"] = getattr(original, "__func__", original)
    return step


def _tried(
    run: Callable[[], object], optimizer: Optimizer, recorder: Recorder, trial: Trial
) -> object:
    outer, recorder.undo.trial = recorder.undo.trial, trial
    trial.moved = recorder.undo.moved()
    try:
        found = run()
        trial.look()
    finally:
        recorder.undo.trial = outer
    trial.flush()
    if trial.caught:
        recorder.give_up(trial.said(trial.caught), passing=True)
    return found


def _undone(trial: Trial, error: BaseException, recorder: Recorder) -> bool:
    """Undo a step that has raised, to run it with plain numbers; False where it is to raise.

    Raises:
        UnsupportedOptimizer: the error may be for a number, and not all can be undone.
    """
    if isinstance(error, GraphError) or not trial.is_whole:
        trial.flush()
        return False
    with not_listening():
        trial.put_back()
    if recorder.undo.moved() != trial.moved:  # outside of the optimizer, a global perhaps
        if not _may_be_for_a_number(error):
            return False  # the user's own
        raise UnsupportedOptimizer(
            f"{trial.said(error)}. By then it has changed what is not its own, and cannot run "
            "again.",
            where=raised_at(error),
            fix="hand it int(number) or float(number).",
            falls_back=False,
        ) from error
    recorder.give_up(trial.said(error), passing=True)
    return True


def _may_be_for_a_number(error: BaseException) -> bool:
    """True for an error that a symbolic number may have caused: it names one, or its class."""
    names = any(kind.__name__ in str(error) for kind in (number.Number, number.Integer))
    return names or isinstance(error, (TypeError, Ended))
