"""Program → Executable: straight Python over ATen ops, which write in place where they can."""

from __future__ import annotations

from ..program import Program
from . import executable
from .executable import Executable
from .plan import Plan

__all__ = ["Executable", "Plan", "lower"]


def lower(program: Program, name: str) -> Executable | Plan:
    """One executable, or the plan of a step that accumulates gradients.

    Raises:
        NotSupported: the step cannot be split into micro-batches and an update.
    """
    accumulates = program.signature.micro_batches > 1
    return Plan.of(program, name) if accumulates else executable.lower(program, name)
