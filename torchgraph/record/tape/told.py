"""Who is told what a step does while it runs: `debug` prints it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ...live.step import Leaf
from .tape import Tape


class Told(Protocol):
    """Told of modules and, where it says so to the tape, of ops."""

    def begins(self, tape: Tape, inputs: Iterable[tuple[Leaf, int]]) -> None:
        """A step begins; ``inputs`` are known with their values on the tape, also later ones."""

    def module(self, path: str, tag: str, values: object) -> None:
        """The module at ``path`` is called (``"INPUT"``) or has run (``"OUTPUT"``)."""


class _Nobody:
    def begins(self, tape: Tape, inputs: Iterable[tuple[Leaf, int]]) -> None:
        pass

    def module(self, path: str, tag: str, values: object) -> None:
        pass


NOBODY: Told = _Nobody()
