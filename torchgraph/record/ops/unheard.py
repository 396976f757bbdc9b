"""What a step has done past the recorder: ops on threads of C++, and writes without an op.

`torch.jit.fork` runs a part of TorchScript on such threads, in no order that a tape has. What a
thread of Python's writes while the step waits for it shows in the versions of the step's states.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import torch

from ..._torch import OpOverload
from ..._torch.listening import hearing_elsewhere
from ..._torch.tensors import version_of
from ...errors import GraphError, NoProgram, SourceLine, user_frames
from ...ir.aliasing import has_strides
from ...live.step import Step
from ..tape.tape import Args, Kwargs
from . import operands
from .facts import facts

WRITTEN_UNHEARD = (
    "the step has {name} written by what no program hears of: another thread, or code in C++ that "
    "calls no op. Write it in the step itself"
)
"""Why a step has no program, for a state."""


class KeepsMemory(Protocol):
    """The interface of the undo log."""

    def keep(self, tensor: torch.Tensor) -> None:
        """Keep the memory of ``tensor`` before a write."""


class OtherThreadsOps:
    """The ops that threads of C++ have run for a step: each is noted, and none is recorded."""

    def __init__(self, undo: KeepsMemory) -> None:
        self._undo, self._thread = undo, threading.get_ident()
        self.found: tuple[OpOverload, SourceLine | None] | None = None
        """One of them, and the user's line that runs meanwhile."""

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note such ops in the block."""
        with hearing_elsewhere(self._note):
            yield

    def _note(self, op: OpOverload, args: Args, kwargs: Kwargs) -> None:
        if self.found is None:
            lines = user_frames(1, sys._current_frames().get(self._thread))
            self.found = op, lines[0] if lines else None
        for tensor in operands.written(facts(op), args, kwargs):
            with suppress(GraphError):  # one raised here would not be ours when it arrives
                self._undo.keep(tensor)

    def refuse(self, refuse: Callable[[NoProgram], None]) -> None:
        """Refuse a step that has run such ops."""
        if self.found is None:
            return
        op, line = self.found
        error = NoProgram(
            f"the step runs ops on other threads ({op}), as torch.jit.fork() does, and a program "
            "runs all ops one after the other.",
            where=line,
            fix="call the function itself in the place of torch.jit.fork().",
        )
        refuse(error)


class Versions:
    """The versions of a step's states as it begins, which each write raises."""

    def __init__(self, step: Step) -> None:
        self._before = [
            (leaf.fqn, leaf.value, version_of(leaf.value))
            for _, leaf in step.tensors()
            if has_strides(leaf.value) and not leaf.value.is_inference()
        ]

    def moved(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The states that were written since, with their names."""
        for name, tensor, before in self._before:
            if version_of(tensor) != before:
                yield name, tensor
