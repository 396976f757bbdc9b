"""Calls that no program serves for good: whether that is an error, what is said, how many ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..errors import EagerWarning, MovingValue, NoProgram, warn
from ..options.options import Options
from ..record.compare.compare import Difference
from ..record.compare.outcome import Outcome
from ..record.compare.pointers import moving_buffer

_ROWS = 50
"""How many kinds of calls are counted apart."""


AS_TENSORS = (
    "pass numbers and arrays that change as tensors (torch.from_numpy), make objects once and "
    "pass the same ones, and pad inputs to few shapes"
)
STRANGERS = f"its arguments are others at each call: {AS_TENSORS}"
"""Why a call is not recorded before another like it comes."""


@dataclass(frozen=True)
class EagerCalls:
    """Calls of one kind that ran in eager, not to be recorded."""

    serves: str
    """Their arguments, in words."""
    why: str
    count: int


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
    """What one Graph says about calls that stay in eager, and how many they were."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._late = False
        self._eager: Counter[tuple[str, str]] = Counter()
        self.recorded = 0
        """Calls that ran in eager to be recorded, or to confirm a program."""

    def clear(self) -> None:
        """Say everything once more. A training that has come far is not stopped all the same."""
        self._said.clear()

    def began(self) -> None:
        """The training is under way: programs serve, or a signature is beyond its second call."""
        self._late = True

    def raises(self, options: Options) -> bool:
        """Whether a step that no program can hold is an error: in the first two calls alone."""
        ran = self.recorded + self._eager.total()
        return options.fallback == "error" and not self._late and ran < 2

    def say(self, why: str, about: str, kind: type[EagerWarning]) -> None:
        """Why a step runs in eager; once for whatever signature, and once about ``about``."""
        if self.is_new(about or why):
            fix = f"\n  Fix: {kind.fix}" if kind.fix else ""
            warn(f"The step runs in eager: {why}.{fix}", kind)

    def warn_of_pointer(self, outcome: Outcome, apart: Difference) -> None:
        """At the third recording: what moves by itself has no end of programs."""
        name = moving_buffer(outcome, apart.where)
        if name and self.is_new(name):
            warn(
                f"Each call needs a program of its own: {name} moves, and Python reads it; "
                f"{apart.what}{apart.at}.\n  Fix: {MovingValue.fix}",
                MovingValue,
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
        """Those that were not recorded, the most frequent first."""
        return tuple(EagerCalls(*key, count) for key, count in self._eager.most_common())

    @property
    def why(self) -> str:
        """The reason of the most frequent ones; empty where none of them ran."""
        return next((calls.why for calls in self.eager), "")
