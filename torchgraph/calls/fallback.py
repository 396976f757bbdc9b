"""Fallback to eager: its errors and warnings, and counts of calls that no program serves."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ..errors import (
    EagerWarning,
    MovingValue,
    NoProgram,
    NotRepeatedWarning,
    SlowGuardsWarning,
    UnknownFunctionWarning,
    warn,
)
from ..options.options import Options
from ..reasons import Reason, reason_of
from ..record.ambient.ambient_state import Said
from ..record.compare.compare import Difference
from ..record.compare.outcome import Outcome, moving_buffer
from ..replay.replay import Replay

_MOST_LINES = 3
_ROWS = 50
"""Kinds of calls with a count of their own."""


_NAME = re.compile(r"\b[A-Za-z_]\w*_\w+\b")
_OUTSIDE, _GRADIENT = re.compile(r"\bfree\.\d+\b"), re.compile(r"\bfree\.\d+\.grad\b")
"""Tensors of which no name is known."""

_OF_A_NAME = (
    "read what the step needs of it outside of the step, and keep that alone: in an attribute of "
    "its own, or as an argument. What a step reads is compared before each call."
)
_OF_ALL = "give each call more to compute, as by a larger batch."
_NOT_COMPILED = "the guards are not compiled here, which `torchgraph doctor` tells more about."


@dataclass(frozen=True)
class EagerCalls:
    """Calls of one kind that ran in eager, not to be recorded."""

    serves: str
    """A description of their arguments."""
    why: str
    count: int

    @property
    def reason(self) -> Reason:
        """The entry in the closed list of reasons."""
        return reason_of(self.why)


@contextmanager
def no_advice_taken(options: Options) -> Iterator[None]:
    """Looking for a program in here: where eager does it already, no error says to let it."""
    try:
        yield
    except NoProgram as error:
        if options.fallback != "eager" or not error.falls_back:
            raise
        own = error.way_out.removesuffix(NoProgram.fix).removesuffix("\n  Or ")
        fix = own or "graph.report() says what runs in eager, and why."
        raise type(error)(error.what, where=error.where, fix=fix, falls_back=False) from error


class Fallback:
    """Warnings of one Graph about calls that stay in eager, and their counts.

    Args:
        words: gives the user's names, by torchgraph's own names.
    """

    def __init__(self, words: Callable[[], Mapping[str, str]]) -> None:
        self._said: set[str] = set()
        self._late = False
        self._words = words
        self._eager: Counter[tuple[str, str]] = Counter()
        self.recorded = 0
        """Calls that ran in eager to be recorded, or to confirm a program."""

    def clear(self) -> None:
        """Say everything once more. A training that has come far is not stopped all the same."""
        self._said.clear()

    def began(self) -> None:
        """The training is under way: programs serve, or a signature is beyond its second call."""
        self._late = True

    @property
    def late(self) -> bool:
        """True once the training is under way."""
        return self._late

    def raises(self, options: Options) -> bool:
        """True where a step that no program can hold is an error: in the first two calls alone."""
        if self._late or options.fallback != "error":
            return False
        return self.recorded + self._eager.total() < 2

    def say(self, why: str, about: str, kind: type[EagerWarning], fix: str = "") -> None:
        """Why a step runs in eager; once for whatever signature, and once about ``about``."""
        why = self.spelled(why)
        if self.is_new(about or why):
            fix = fix or kind.fix
            fix = f"\n  Fix: {fix}" if fix else ""
            warn(f"The step runs in eager: {why}.{fix}", kind)

    def spelled(self, text: str) -> str:
        """A text in the user's names."""
        text = _GRADIENT.sub("the gradient of a tensor from outside", text)
        text = _OUTSIDE.sub("a tensor from outside", text)
        words = self._words()
        return _NAME.sub(lambda found: words.get(found[0], found[0]), text)

    def warn_of_pointer(self, outcome: Outcome, apart: Difference) -> None:
        """At the third recording: what moves by itself has no end of programs."""
        name = moving_buffer(outcome, apart.where)
        if name and self.is_new(name):
            warn(
                f"Each call needs a program of its own: {name} moves, and Python reads it; "
                f"{apart.what}{apart.at}.\n  Fix: {MovingValue.fix}",
                MovingValue,
            )

    def say_left_out(self, old: Outcome, new: Outcome) -> None:
        """Warn of actions of both calls that a replay omits: logs, calls of unknown functions."""
        logs = [one for one in new.left_out.logs if one in old.left_out.logs]
        if logs and self.is_new(NotRepeatedWarning.__name__):
            warn(
                f"Replays of the step do not repeat what it logs: {_listed(logs)}.\n"
                f"  Fix: {NotRepeatedWarning.fix}",
                NotRepeatedWarning,
            )
        unknown = [one for one in new.left_out.unknown if self.is_new(one.what)]
        if unknown:
            warn(
                f"Replays of the step do not call functions whose code is in C, and nobody knows "
                f"what these go by: {_listed(unknown)}.\n  Fix: {UnknownFunctionWarning.fix}",
                UnknownFunctionWarning,
            )

    def warn_of_guards(self, name: str, replay: Replay) -> None:
        """Warn once where guards take longer than their program: of the costliest, with a fix."""
        outlast = replay.guard_times.outlast(replay.seconds, on_cpu=replay.devices <= {"cpu"})
        if not outlast or not self.is_new("guards"):
            return
        taken, program = replay.guard_times.median or 0.0, statistics.median(replay.seconds)
        costliest = replay.guards.costliest()
        most = f"{costliest}, which the step reads" if costliest else "its modules and optimizers"
        fix = _OF_A_NAME if costliest else _OF_ALL
        if replay.guards.form == "python":
            fix = _NOT_COMPILED
        warn(
            f"{name}: before each call it takes {1e3 * taken:.2g} ms to look whether its program "
            f"still fits, and the program itself takes {1e3 * program:.2g} ms on the host. Most of "
            f"it is {most}.\n  Fix: {fix}",
            SlowGuardsWarning,
        )

    def is_new(self, about: str) -> bool:
        """True for what was not said before; it counts as said."""
        known = about in self._said
        self._said.add(about)
        return not known

    def count(self, serves: str, why: str) -> None:
        """A call has run; ``why`` is empty for one that was recorded."""
        if not why:
            self.recorded += 1
            return
        key = (serves, why)
        self._eager[key if key in self._eager or len(self._eager) < _ROWS else ("others", "")] += 1

    @property
    def eager(self) -> tuple[EagerCalls, ...]:
        """Calls that were not recorded, by kind, the most frequent first."""
        return tuple(EagerCalls(*key, count) for key, count in self._eager.most_common())

    @property
    def why(self) -> str:
        """The reason of the most frequent kind in `eager`; empty where there is none."""
        return next((calls.why for calls in self.eager), "")


def _listed(said: Sequence[Said]) -> str:
    shown = ", ".join(map(str, said[:_MOST_LINES]))
    more = len(said) - _MOST_LINES
    return f"{shown}, and {more} more" if more > 0 else shown
