"""What nodes take: measured by a profile, else estimated from the program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from ...errors import InvalidOption
from ...ir.program import Program
from ...lower.cost import seconds_by_node
from ...options.checking import shown

MEASURED, ESTIMATED = "measured", "estimated"


@runtime_checkable
class Timed(Protocol):
    """What has the seconds of nodes, as a profile has."""

    @property
    def seconds_by_node(self) -> Mapping[str, float]:
        """node -> seconds in one step."""


Timings = Mapping[str, float] | Timed | None


class Seconds(NamedTuple):
    """Seconds in one step by node, and whether they are measured or estimated."""

    by_node: Mapping[str, float]
    kind: str
    elsewhere: float = 0.0
    """Measured seconds of nodes that lowering made, which are none of the program's."""


def seconds_of(program: Program, given: Timings) -> Seconds:
    """The times of a program's nodes.

    Raises:
        InvalidOption: what is given holds no times, or none of this program's nodes.
    """
    if given is None:
        return Seconds(seconds_by_node(program), ESTIMATED)
    found = given if isinstance(given, Mapping) else getattr(given, "seconds_by_node", None)
    if not isinstance(found, Mapping):
        raise InvalidOption(
            f"profile= takes seconds by node, or what has them, not {shown(given)}.",
            fix="give it graph.profile(*args).",
        )
    names = {node.name for node in program.nodes if node.op == "call_function"}
    known = {name: float(found[name]) for name in found if name in names}
    if names and not known:
        raise InvalidOption(
            "profile= holds no node of this program.",
            fix="profile the Graph that the report is of, with the arguments of its last call.",
        )
    elsewhere = sum(float(seconds) for name, seconds in found.items() if name not in names)
    return Seconds(known, MEASURED, elsewhere)
