"""Bound: the interface of a program over live objects, of which copies are run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from ..capture.program_of import Captured
from ..ir.program import Program
from ..live.inputs import Call
from ..live.step import Leaf


class Bound(Protocol):
    """A program bound to the live objects that it reads and writes; a `Replay` is one."""

    captured: Captured
    """The program before all passes, with what binds it."""
    aten_program: Program
    """The program that runs on `aten`."""

    @property
    def leaves(self) -> Sequence[Leaf]:
        """The bound leaves, in the order of the signature's inputs."""

    @property
    def program(self) -> Program:
        """The program after all passes."""

    def over(self, captured: Captured, *, audited: bool = False) -> Bound:
        """A program like it over other objects, op by op; compared with `aten` if ``audited``."""

    def results(self, call: Call) -> Sequence[torch.Tensor]:
        """One step: all that the program returns."""
