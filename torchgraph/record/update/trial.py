"""Optimizer steps that raise over symbolic numbers: undone, and run with plain ones.

C code that needs Python's own numbers, as ``deque(maxlen=k)`` does, refuses symbolic ones. Whether
an error that the step catches is one of these, the plain run tells.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from ..._torch.listening import is_listening, not_listening
from ...errors import GraphError, UnsupportedOptimizer
from ...lines import raised_at
from ...live.snapshot import Placed, Written, contents_of, refill
from ...optimizers.rules import allocates_slots
from ...random_state import RandomState
from ..ops.recorder import Recorder
from ..tape import number

_MOST = 1 << 26
"""Limit of the bytes copied for an undo: a step mostly raises at its first parameter."""
_DEEPEST, _MANY = 8, 1 << 16
"""Limits of nesting and size: deeper or larger containers are not copied."""
_HELD = (dict, list, set, deque)
REJECTIONS = (TypeError, AttributeError, RuntimeError)
"""Exceptions raised by code that rejects symbolic numbers."""

_caught_plain: MutableMapping[Optimizer, set[Any]] = WeakIdKeyDictionary()
"""By optimizer, the errors that its step has also caught over plain numbers."""


class _Caught(BaseException):
    """The step has caught an error, which may be for a symbolic number."""


class Trial:
    """The state before an optimizer's step, to undo it."""

    def __init__(self, optimizer: Optimizer, raised: set[Any]) -> None:
        """``raised``: (class, code, line) of the errors in the user's lines, up to now."""
        self._raised, self._before = raised, frozenset(raised)
        self._expected = {*raised, *_caught_plain.get(optimizer, ())}
        self._random = RandomState()
        self._written = Written()
        self._bytes = 0
        self._containers: dict[int, tuple[Any, list[Any]]] = {}
        self._note(vars(optimizer))
        self._placed = [Placed(p) for group in optimizer.param_groups for p in group["params"]]

    def keep(self, tensor: torch.Tensor) -> None:
        """Copy the memory of ``tensor`` before its first write."""
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
            raise _Caught(self.caught)

    @property
    def caught(self) -> str:
        """The error that the step has caught and no earlier plain one."""
        kinds = (kind for kind, *_ in self._raised - self._expected)
        return next(
            (f"{k.__name__}, which it catches" for k in kinds if issubclass(k, REJECTIONS)), ""
        )

    def put_back(self) -> None:
        """Restore the state, with plain numbers."""
        for held, before in self._containers.values():
            is_dict = isinstance(held, dict)
            refill(held, [(one[0], _plain(one[1])) if is_dict else _plain(one) for one in before])
        self._written.put_back()
        for one in self._placed:
            one.put_back()
        self._random.put_back()
        self._raised &= self._before

    def _note(self, value: object, depth: int = 0) -> None:
        """The containers of an optimizer, and the attributes of objects that it holds."""
        other = isinstance(value, (torch.Tensor, torch.nn.Module, type)) or callable(value)
        if other or depth > _DEEPEST:
            return
        if isinstance(value, tuple):
            for item in value:
                self._note(item, depth + 1)
        held = value if isinstance(value, _HELD) else getattr(value, "__dict__", None)
        if not isinstance(held, _HELD) or id(held) in self._containers:
            return
        if len(held) > _MANY:
            self._bytes = _MOST + 1
            return
        self._containers[id(held)] = (held, contents_of(held))
        for item in list(held.values() if isinstance(held, dict) else held):
            self._note(item, depth + 1)


def _plain(value: object) -> object:
    items = value if isinstance(value, tuple) else (value,)
    moves = any(number.node_of(item) is not None for item in items)
    return number.bare(value) if moves else value


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
        if once or recorder.gave_up or undo.trial is not None or not is_listening():
            return original(*args, **kwargs)
        before, trial = undo.moved(), Trial(optimizer, undo.raised)
        undo.trial = trial
        try:
            found = original(*args, **kwargs)
            trial.look()
            if trial.caught:
                recorder.give_up(_said(optimizer, trial.caught), passing=True)
            return found
        except GraphError:
            raise
        except (Exception, _Caught) as error:  # of C code, of any kind
            leave(optimizer)
            if not trial.is_whole:
                raise
            with not_listening():
                trial.put_back()
            if undo.moved() != before:  # changed outside of the optimizer, a global perhaps
                if not _rejects(error):
                    raise  # the user's own
                raise UnsupportedOptimizer(
                    f"{_said(optimizer, error)}. By then it has changed what is not its own, and "
                    "cannot run again.",
                    where=raised_at(error),
                    fix="hand it int(number) or float(number).",
                    falls_back=False,
                ) from error
            recorder.give_up(_said(optimizer, error), passing=True)
        finally:
            undo.trial = None
            vars(trial).clear()  # its copies hold symbolic numbers
        found = original(*args, **kwargs)
        _caught_plain.setdefault(optimizer, set()).update(undo.raised)
        return found

    # A scheduler made meanwhile wraps the patched method for good.
    vars(step)["__func__"] = getattr(original, "__func__", original)
    return step


def _rejects(error: BaseException) -> bool:
    """True for an error that a symbolic number may have caused: it names one, or its class."""
    names = any(kind.__name__ in str(error) for kind in (number.Number, number.Integer))
    return names or isinstance(error, (TypeError, _Caught))


def _said(optimizer: Optimizer, error: object) -> str:
    name = type(optimizer).__name__
    return f"{name}.step() hands a number to code that takes no moving one: {error}"
