"""Executable: a lowered program as one Python function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from ...errors import SourceLine
from ...ir.program import OutputKind, OutputSpec, Program, Signature, provenance
from ..memory.planning import MemoryPlan
from ..pauses import Pauses
from .undoing import Undoing


@dataclass(frozen=True)
class Executable:
    """A flat callable with what is needed to call it and to explain its failures."""

    name: str
    """Shown in tracebacks."""
    function: Callable[[Sequence[Any]], tuple[Any, ...]]
    """Takes the values of ``signature.inputs`` as one list; writes states in place."""
    pauses: Pauses
    """The waits for the host, and the function in parts."""
    signature: Signature
    outputs: tuple[OutputSpec, ...]
    """The outputs of the function: the signature's without the states that it writes."""
    source: str
    lines: tuple[fx.Node | None, ...]
    """The node that each line of the source runs."""
    first_write: int
    """The first line that writes a state; lines before it leave everything as it was."""
    undoing: Undoing
    """The conditions under which a failed run can be undone."""
    last_expect: int
    """The last line with a predicate, always before the first write; 0 without one."""
    writes: bool
    """True when a run writes a state."""
    random: bool
    """True when a run draws random numbers."""
    program: Program
    """The lowered program."""
    memory: MemoryPlan

    @property
    def programs(self) -> tuple[Program, ...]:
        """The lowered programs: one."""
        return (self.program,)

    @property
    def copied(self) -> tuple[int, ...]:
        """The input positions that a caller copies before a run, to restore after a failure."""
        return self.undoing.copied

    def wrote(self, error: BaseException) -> bool:
        """True when the run that failed had begun to write states that are not `copied`."""
        return self._line_at(error) >= self.undoing.final

    @property
    def expects(self) -> bool:
        """True when a run may find that it was made for other values."""
        return self.last_expect > 0

    def moved(self, error: BaseException) -> bool:
        """True when the run failed before its last predicate had held, so before it wrote.

        Whatever failed: on values that the program was not made for, any op may.
        """
        return 0 < self._line_at(error) <= self.last_expect

    def node_at(self, error: BaseException) -> fx.Node | None:
        """The node at which a run failed; None when it was not inside the function."""
        line = self._line_at(error)
        return self.lines[line - 1] if line else None

    def _line_at(self, error: BaseException) -> int:
        trace, line = error.__traceback__, 0
        while trace is not None:
            if trace.tb_frame.f_code is self.pauses.code:
                line = trace.tb_lineno
            trace = trace.tb_next
        return line

    def line_of(self, node: fx.Node | None) -> SourceLine | None:
        """The user's line that a node comes from."""
        return provenance(node).line if node is not None else None

    def close(self) -> None:
        """Do nothing: an executable owns no resources."""


def returned(signature: Signature) -> tuple[OutputSpec, ...]:
    """The outputs of a lowered program: tensor states are written in place, not returned."""
    tensors = {spec.fqn for spec in signature.inputs if spec.meta is not None}
    return tuple(
        out
        for out in signature.outputs
        if not (out.kind is OutputKind.UPDATE and out.target in tensors)
    )
