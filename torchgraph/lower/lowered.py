"""Lowered: the interface of what runs a step, one function or several, and shared parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import fx

from ..errors import SourceLine
from ..ir.program import OutputSpec, Program, Signature


class Lowered(Protocol):
    """The executable form of a step, made of one function or several."""

    @property
    def signature(self) -> Signature:
        """The step's inputs and outputs."""

    @property
    def program(self) -> Program:
        """The lowered program, or the one whose parts are lowered."""

    @property
    def outputs(self) -> tuple[OutputSpec, ...]:
        """The outputs of the function: those of the signature without the states it writes."""

    @property
    def programs(self) -> tuple[Program, ...]:
        """The lowered programs."""

    @property
    def source(self) -> str:
        """The functions, as Python."""

    @property
    def writes(self) -> bool:
        """True when a run writes a state."""

    @property
    def random(self) -> bool:
        """True when a run draws random numbers."""

    def function(self, values: Sequence[Any], /) -> tuple[Any, ...]:
        """Run one step: takes the values of ``signature.inputs`` as one list; writes in place."""

    @property
    def copied(self) -> tuple[int, ...]:
        """The input positions that a caller copies before a run, to restore after a failure."""

    def wrote(self, error: BaseException) -> bool:
        """True when the run that failed had begun to write states that are not `copied`."""

    @property
    def expects(self) -> bool:
        """True when a run may find that it was made for other values."""

    def moved(self, error: BaseException) -> bool:
        """True when the run failed before its last predicate had held, so before it wrote."""

    def node_at(self, error: BaseException) -> fx.Node | None:
        """The node at which a run failed; None when it was not inside the function."""

    def line_of(self, node: fx.Node | None) -> SourceLine | None:
        """The user's line that a node comes from."""

    def close(self) -> None:
        """Give back what it holds besides code. It is not run any more."""


class Composite(ABC):
    """A step made of several executables; it wrote, moved or failed where one of them did."""

    @property
    @abstractmethod
    def executables(self) -> tuple[Lowered, ...]:
        """The parts, in the order in which they run."""

    def remade(self, other: Callable[[Lowered], Lowered]) -> Lowered:
        """A copy whose parts are replaced by ``other``; ``self`` where parts are no functions."""
        return self  # type: ignore[return-value]  # what derives from it is a Lowered

    @property
    def programs(self) -> tuple[Program, ...]:
        """The lowered programs of all parts."""
        return tuple(program for part in self.executables for program in part.programs)

    @property
    def source(self) -> str:
        """The functions of all parts, as Python."""
        return "\n".join(part.source for part in self.executables)

    @property
    def writes(self) -> bool:
        """True when a run writes a state."""
        return any(part.writes for part in self.executables)

    @property
    def random(self) -> bool:
        """True when a run draws random numbers."""
        return any(part.random for part in self.executables)

    @property
    def copied(self) -> tuple[int, ...]:
        """No inputs: a composite undoes its own writes where it can."""
        return ()

    def wrote(self, error: BaseException) -> bool:
        """True when the failed part had begun to write states that are not restored."""
        return any(part.wrote(error) for part in self.executables)

    @property
    def expects(self) -> bool:
        """True when a run may find that it was made for other values."""
        return any(part.expects for part in self.executables)

    def moved(self, error: BaseException) -> bool:
        """True when a part failed before its last predicate had held, so before it wrote."""
        return any(part.moved(error) for part in self.executables)

    def node_at(self, error: BaseException) -> fx.Node | None:
        """The node at which a run failed; None when it was not inside of a part."""
        return next(filter(None, (part.node_at(error) for part in self.executables)), None)

    def line_of(self, node: fx.Node | None) -> SourceLine | None:
        """The user's line that a node of any part comes from."""
        return self.executables[0].line_of(node)

    def close(self) -> None:
        """Give back what the parts hold besides code. They are not run any more."""
        for part in self.executables:
            part.close()
