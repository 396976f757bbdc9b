"""A call with numbers that move, taken back where some code takes Python's own numbers alone.

Such a number is no ``int`` to JSON, to ``Decimal`` or to torch's C++ in some of its formulas. Then
all is put back, and the call runs with plain ones, as eager runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..lines import raised_at
from ..live.inputs import Call
from ..live.random_state import RandomState
from ..live.snapshot import Snapshot
from ..live.step import Step
from ..reasons import Because, Reason
from ..structure import Contents
from .compare.outcome import Outcome
from .side_effects.moved import items_of
from .side_effects.stored_tensors import StoredTensors

_HANDED = "a number that the step moves is handed to code that takes Python's own alone"
_SWALLOWED = (TypeError, AttributeError, RuntimeError)
"""What code raises that takes no number which moves."""


class Before:
    """All that a call starts from, as far as a step is known to change it."""

    def __init__(self, step: Step, call: Call, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._contents = Contents(call.args, call.kwargs)
        self._stored_tensors = StoredTensors(step.containers)
        for _, container in step.containers:
            for value in items_of(container).values():
                snapshot.keep(value)
        self._random = RandomState()

    def put_back(self) -> None:
        """All is as it was."""
        self._snapshot.restore()
        self._contents.put_back()
        self._stored_tensors.put_back()
        self._random.put_back()


class Trying:
    """Takes calls whose numbers move.

    Args:
        take: runs a call as eager runs it; heard or not; refusals are raised or not.
        snapshot: of all that a step may change.
    """

    def __init__(
        self,
        take: Callable[[Step, Call, bool, bool], Outcome],
        snapshot: Callable[[Step, Call], Snapshot],
    ) -> None:
        self._take, self._snapshot = take, snapshot
        self._raised: set[Any] = set()
        """What calls with plain numbers have raised in the user's lines, which went on."""

    def __call__(self, step: Step, call: Call, observed: bool, strict: bool) -> Outcome:
        """Take a call; `Outcome.plain` says why the numbers had to stay plain."""
        if not observed or not (step.moving or step.reads_values):
            outcome = self._take(step, call, observed, strict)
            self._raised |= outcome.raised
            return outcome
        before = Before(step, call, self._snapshot(step, call))
        try:
            outcome = self._take(step, call, True, strict)
            why = self._swallowed(outcome)
        except Exception as error:  # ours, or what is raised again, once numbers are plain ones
            why = _because(error)
        if not why:
            return outcome
        before.put_back()
        outcome = self._take(step.without_numbers(), call, True, strict)
        outcome.plain = why
        return outcome

    def _swallowed(self, outcome: Outcome) -> str:
        """What the user's lines have caught that may be for a number that moves."""
        new = outcome.raised - self._raised
        kinds = (kind for kind, *_ in new if issubclass(kind, _SWALLOWED))
        said = (f"{_HANDED} ({kind.__name__}, which the step catches)" for kind in kinds)
        return next((Because(Reason.MOVED, one) for one in said), "")


def _because(error: Exception) -> Because:
    """Why numbers stay plain: what a line of the user's raises, or torchgraph's own code does."""
    line, said = raised_at(error), f"{type(error).__name__}: {error}"
    if line is None:
        return Because(Reason.FAULT, f"a number that the step moves cannot be followed ({said})")
    return Because(Reason.MOVED, f"{_HANDED} ({said}, at {line})")
