"""Calls with symbolic numbers, undone and run with plain ones where code rejects them.

JSON, ``Decimal`` and some of torch's C++ formulas reject a symbolic number. Then the state is
restored, and the call runs with plain numbers, as in eager.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..lines import raised_at
from ..live.inputs import Call
from ..live.snapshot import Snapshot
from ..live.step import Step
from ..random_state import RandomState
from ..reasons import Because, Reason
from ..structure import Contents
from .compare.outcome import Outcome
from .ops.undo import attempted
from .side_effects.moved import items_of
from .side_effects.stored_tensors import StoredTensors
from .update.attempt import Attempt, Ended
from .update.trial import REJECTIONS

_HANDED = "a number that the step moves is handed to code that takes Python's own alone"


class Before:
    """The state before a call, as far as a step may change it."""

    def __init__(self, step: Step, call: Call, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._contents = Contents(call.args, call.kwargs)
        self._stored_tensors = StoredTensors(step.containers)
        for _, container in step.containers:
            for value in items_of(container).values():
                snapshot.keep(value)
        self._random = RandomState()

    def put_back(self) -> None:
        """Restore the state."""
        self._snapshot.restore()
        self._contents.put_back()
        self._stored_tensors.put_back()
        self._random.put_back()


class Trying:
    """The runner of calls with symbolic numbers.

    Args:
        take: runs a call as in eager; recorded or not; refusals are raised or not.
        snapshot: of all that a step may change.
    """

    def __init__(
        self,
        take: Callable[[Step, Call, bool, bool], Outcome],
        snapshot: Callable[[Step, Call], Snapshot],
    ) -> None:
        self._take, self._snapshot = take, snapshot
        self._raised: set[Any] = set()
        """Errors that calls with plain numbers raised and caught in the user's lines."""

    def __call__(self, step: Step, call: Call, observed: bool, strict: bool) -> Outcome:
        """Take a call; `Outcome.plain` says why the numbers had to stay plain."""
        if not observed or not (step.moving or step.reads_values):
            outcome = self._take(step, call, observed, strict)
            self._raised |= outcome.raised
            return outcome
        attempt = Attempt("the step")
        before = Before(step, call, self._snapshot(step, call))
        found, why = self._symbolic(step, call, strict, attempt)
        if found is not None and not why:
            return found
        before.put_back()
        attempt.put_back()
        outcome = self._take(step.without_numbers(), call, True, strict)
        outcome.plain = why
        return outcome

    def _symbolic(
        self, step: Step, call: Call, strict: bool, attempt: Attempt
    ) -> tuple[Outcome | None, str]:
        """A call with symbolic numbers, and why it is to be made again with plain ones."""
        outcome: Outcome | None = None
        try:
            with attempted(attempt):
                outcome = self._take(step, call, True, strict)
            why = self._swallowed(outcome)
        except Ended as ended:
            why = Because(Reason.MOVED, str(ended))
        except Exception as error:  # torchgraph's own, or one that plain numbers raise again
            why = _because(error)
        if not why:
            attempt.flush()
        return outcome, why

    def _swallowed(self, outcome: Outcome) -> str:
        """The first error that user lines caught which may be for a symbolic number."""
        new = outcome.raised - self._raised
        kinds = (kind for kind, *_ in new if issubclass(kind, REJECTIONS))
        said = (f"{_HANDED} ({kind.__name__}, which the step catches)" for kind in kinds)
        return next((Because(Reason.MOVED, one) for one in said), "")


def _because(error: Exception) -> Because:
    """The reason for plain numbers: an error in a line of the user's, or in torchgraph."""
    line, said = raised_at(error), f"{type(error).__name__}: {error}"
    if line is None:
        return Because(Reason.FAULT, f"a number that the step moves cannot be followed ({said})")
    return Because(Reason.MOVED, f"{_HANDED} ({said}, at {line})")
