"""A program with its executable, which may be replayed as a CUDA Graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..ir.program import Phase, Program, Refusal
from ..lower import Lowered, Region


@dataclass
class Times:
    """Seconds of a step in the last profile; empty before one was made."""

    by_node: Mapping[str, float] = field(default_factory=dict)
    """By the names of the program's nodes."""
    besides: Mapping[tuple[str, Phase], float] = field(default_factory=dict)
    """Seconds of nodes that lowering made, by module and phase."""

    def keep(
        self, by_node: Mapping[str, float], besides: Mapping[tuple[str, Phase], float]
    ) -> None:
        """Replace the times of the profile before."""
        self.by_node, self.besides = by_node, besides


@dataclass(frozen=True)
class Code:
    """A program after its passes, lowered."""

    program: Program
    executable: Lowered
    regions: tuple[Region, ...] = ()
    """The regions of the executable that have to be compiled first."""
    refusals: tuple[Refusal, ...] = ()
    """The reasons why it cannot be a CUDA Graph, with the user's lines."""
    why_no_graph: str = ""
    """Why it is none, where nothing in the program is to blame."""
    times: Times = field(default_factory=Times, compare=False, repr=False)
