"""Another function for a lowered program: the same calls, with labels or clocks around each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch.profiler import record_function

from .halves.halves import Halves
from .lowered import Composite, Lowered
from .plan import Plan
from .write.around import Around, Labels
from .write.executable import Executable
from .write.step import rewritten


def variant(lowered: Lowered, what: str, around: Callable[[], Around]) -> Lowered:
    """Another form of ``lowered`` with the same results, an ``around`` for each of its functions.

    A CUDA Graph, which is no function any more, is returned as it is.
    """
    if isinstance(lowered, Executable):
        return rewritten(lowered, what, around())
    if isinstance(lowered, Plan):
        first, following, update = (variant(one, what, around) for one in lowered.executables)
        return replace(lowered, first=first, following=following, update=update)
    if isinstance(lowered, Halves):
        host, device = (rewritten(one, what, around()) for one in lowered.executables)
        return replace(lowered, host=host, device=device)
    if isinstance(lowered, Composite):
        return lowered.remade(lambda part: variant(part, what, around))
    return lowered


class Labelling:
    """A step's executable, with a lazily written variant that labels each op for profilers.

    It writes the function with labels when it is first asked for, and keeps it.
    """

    def __init__(self, executable: Lowered) -> None:
        self._executable = executable
        self._labelled: Lowered | None = None
        self.is_on = False
        """True while what runs has labels."""

    def turned(self, *, on: bool) -> Lowered:
        """Switch labels on or off; return the executable to run from now on."""
        if on and self._labelled is None:
            with record_function("torchgraph writes labels"):
                self._labelled = variant(self._executable, "labelled", Labels)
        self.is_on = on
        return self._executable if self._labelled is None or not on else self._labelled
