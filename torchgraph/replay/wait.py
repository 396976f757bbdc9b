"""The wait for a compiler: it shows what for, and Ctrl-C ends it."""

from __future__ import annotations

import sys

from ..debug.stages import Stages
from ..lower import Compilation
from .interrupts import SignalsWait

_FIRST = 10.0
_NEXT = 60.0
"""Seconds until a line says what is waited for, and between two lines; a bar says it sooner."""


def limit_text(limit: float | None) -> str:
    """A limit on waiting, as text."""
    return "as long as it takes" if limit is None else f"{limit:g} s at most"


def wait_for(compilation: Compilation, limit: float | None, stages: Stages) -> None:
    """Finish a compilation. What ``stages`` shows says which program, and for how long.

    An interrupt ends the wait at once, before it takes effect.

    Raises:
        CompilationFailed: with what Inductor said, or why the wait is over.
    """
    due = _FIRST
    signals = SignalsWait()

    def goes_on(waited: float) -> bool:
        nonlocal due
        what = f"compiling {compilation.status}"
        if not stages.describe(what) and waited >= due:
            due = waited + _NEXT
            sys.stderr.write(f"torchgraph: {what}, {waited:.0f} s so far, {limit_text(limit)}.\n")
            sys.stderr.flush()
        return not signals.interrupted

    with signals:
        compilation.finish(limit, goes_on)
