"""Whose the time of a call is: a node's, or that of the nodes of compiled code, or of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from torch import fx

from ...errors import SourceLine
from ...ir.names import module_of
from ...ir.nodes import all_nodes, sequence
from ...ir.program import Phase, provenance
from ...lower import Region, own_module
from ..ops import base_name

Member = TypeVar("Member")
Weigh = Callable[[str], float]
"""What a node of the program would take by its work, in seconds."""


class Share(NamedTuple):
    """A part of the time of a call."""

    node: str
    """The name of a node of the program; of one that lowering made, its own."""
    op: str
    phase: Phase
    module: str
    line: SourceLine | None
    part: float
    """From 0 to 1; those of a call are 1 together."""
    estimated: bool
    """True for a node in compiled code, whose time is split by work. Rows are split by size."""


def shares(node: fx.Node, weigh: Weigh) -> Iterator[Share]:
    """Whose the time of a call is."""
    if isinstance(node.target, Region):
        members = node.target.origins()
        parts = _parts({member: weigh(member.name) for member in members})
        yield from (_share(member, parts[member], estimated=True) for member in members)
        return
    owners = getattr(node.target, "rows", ())
    if not owners:
        yield _share(node, 1.0)
        return
    columns = [all_nodes(column) for column in sequence(node.args[0])]
    sizes = {i: sum(_size(column[i]) for column in columns) for i in range(len(owners))}
    whole = _share(node, 1.0)
    for i, part in _parts(sizes).items():
        yield whole._replace(module=module_of(owners[i]), part=part)


def _share(node: fx.Node, part: float, *, estimated: bool = False) -> Share:
    origin = provenance(node)
    name = base_name(node.target)
    module = own_module(node)
    return Share(node.name, name, origin.phase, module, origin.line, part, estimated)


def _size(node: fx.Node) -> float:
    return float(getattr(node.meta["val"], "nbytes", 0))


def _parts(weights: Mapping[Member, float]) -> dict[Member, float]:
    whole = sum(weights.values())
    if not whole:
        return dict.fromkeys(weights, 1 / max(1, len(weights)))
    return {member: weight / whole for member, weight in weights.items()}
