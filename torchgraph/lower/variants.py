"""Another function for a lowered program: the same calls, with labels or clocks around each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .halves.halves import Halves
from .lowered import Lowered
from .plan import Plan
from .write.around import Around
from .write.executable import Executable
from .write.writer import rewritten


def variant(lowered: Lowered, what: str, around: Callable[[], Around]) -> Lowered:
    """What computes the same bits, each of its functions with an ``around`` of its own.

    What is no function any more, a CUDA Graph, is given back as it is.
    """
    if isinstance(lowered, Executable):
        return rewritten(lowered, what, around())
    if isinstance(lowered, Plan):
        first, following, update = (variant(one, what, around) for one in lowered.executables)
        return replace(lowered, first=first, following=following, update=update)
    if isinstance(lowered, Halves):
        host, device = (rewritten(one, what, around()) for one in lowered.executables)
        return replace(lowered, host=host, device=device)
    return lowered
