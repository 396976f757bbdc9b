"""``lazy_mode``: whether code runs for a Graph. Tensors are real ones all the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ....calls.live_step import LiveStep, building, in_build
from ..errors import NotPorted

_said: ContextVar[tuple[bool, LiveStep | None] | None] = ContextVar("_said", default=None)
"""What a guard says, and the step in whose `build` it does."""


def is_lazy() -> bool:
    """True in `build`, or what a guard there says. OneFlow: ``lazy_mode.is_enabled``."""
    said = _said.get()
    return said[0] if said is not None and said[1] is in_build.get() else building()


@contextmanager
def guard(mode: bool) -> Iterator[None]:
    """A block in which `is_lazy` is ``mode``; nothing else is. OneFlow: ``lazy_mode.guard``.

    Raises:
        NotPorted: False in `build`, where OneFlow would compute what is in the block once.
    """
    if building() and not mode:
        raise NotPorted(
            "lazy_mode.guard(False) in build: what build computes belongs to each call.",
            fix="compute it before, and let build read it.",
        )
    token = _said.set((mode, in_build.get()))
    try:
        yield
    finally:
        _said.reset(token)


def current_name() -> str:
    """The name of the Graph whose `build` runs.

    OneFlow: ``JobBuildAndInferCtx_GetCurrentJobName``.

    Raises:
        NotPorted: none runs.
    """
    step = in_build.get()
    if step is None:
        raise NotPorted(
            "JobBuildAndInferCtx_GetCurrentJobName: no build runs.", fix="graph.name is its name."
        )
    return step.name
