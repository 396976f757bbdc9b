"""What runs a program: its executable, and whether that is replayed as a CUDA Graph."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ir.program import Program, Refusal
from ..lower import Lowered, Region


@dataclass(frozen=True)
class Code:
    """A program after its passes, lowered."""

    program: Program
    executable: Lowered
    regions: tuple[Region, ...] = ()
    """What the executable calls that has to be compiled first."""
    refusals: tuple[Refusal, ...] = ()
    """What keeps it from being a CUDA Graph, with the user's lines."""
    why_no_graph: str = ""
    """Why it is none, where nothing in the program is to blame."""
    node_seconds: dict[str, float] = field(default_factory=dict, compare=False, repr=False)
    """What each node took when it was profiled last; empty before."""
