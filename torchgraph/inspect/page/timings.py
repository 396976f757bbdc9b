"""Times of nodes: measured by a profile, else estimated from the program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from ...errors import InvalidOption
from ...ir import text
from ...ir.program import Phase, Program
from ...lower.cost import seconds_by_node
from ...options.checking import shown
from ..profile.profile import Profile
from ..profile.times import besides

MEASURED, ESTIMATED = "measured", "estimated"
_FIX = "profile the Graph that the report is of, with the arguments of its last call."


@runtime_checkable
class Timed(Protocol):
    """An object with the seconds of nodes, as a profile has."""

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
    besides: Mapping[tuple[str, Phase], float] = {}
    """The same by module and phase, where a profile says it."""


def seconds_of(program: Program, given: Timings, graph: str) -> Seconds:
    """The times of a program's nodes. ``graph``: the name of the Graph that it is of.

    Raises:
        InvalidOption: what is given holds no times, or none of this program's nodes; a profile of
            another Graph or of another program.
    """
    if given is None:
        return Seconds(seconds_by_node(program), ESTIMATED)
    found = given if isinstance(given, Mapping) else getattr(given, "seconds_by_node", None)
    if not isinstance(found, Mapping):
        raise InvalidOption(
            f"profile= takes seconds by node, or what has them, not {shown(given)}.",
            fix="give it graph.profile(*args).",
        )
    if isinstance(given, Profile):
        _check(given, program, graph)
    names = {node.name for node in program.nodes if node.op == "call_function"}
    known = {name: float(found[name]) for name in found if name in names}
    if names and not known:
        raise InvalidOption("profile= holds no node of this program.", fix=_FIX)
    elsewhere = sum(float(seconds) for name, seconds in found.items() if name not in names)
    made = besides(given.nodes, names) if isinstance(given, Profile) else {}
    return Seconds(known, MEASURED, elsewhere, made)


def _check(profile: Profile, program: Program, graph: str) -> None:
    """Refuse times of another Graph: equal names of nodes do not tell programs apart."""
    if profile.name != graph:
        raise InvalidOption(f"profile= is of {profile.name}, this report of {graph}.", fix=_FIX)
    timed = profile.drawn.program if profile.drawn else program
    if timed is not program and text.render(timed) != text.render(program):
        raise InvalidOption(
            f"profile= is of another program of {graph} than the one that this report is of.",
            fix=_FIX,
        )
