"""Attribution of the time of a call to nodes: of compiled code, or of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import fx

from ...costs.op_calls import Work
from ...ir.ops import base_name
from ...ir.program import provenance
from ...lower import Region
from ..formats.drawn import Origin
from .planned import Planned


class Share(NamedTuple):
    """A part of the time of a call."""

    of: Origin
    part: float
    """From 0 to 1; those of a call are 1 together."""
    work: Work
    """What of the node's work is in it. Rows are split by size, and so is their time."""
    estimated: bool
    """True for a node in compiled code, whose time is split by work."""


def shares(node: fx.Node, plan: Planned) -> Iterator[Share]:
    """The parts of the time of a call, by node."""
    if not isinstance(node.target, Region):
        yield from _of_node(node, 1.0, plan)
        return
    members = node.target.origins()
    seconds = [plan.seconds(member.name) for member in members]
    whole = sum(seconds)
    for member, taken in zip(members, seconds, strict=True):
        yield from _of_node(member, taken / whole, plan, estimated=True)


def _of_node(
    node: fx.Node, of_call: float, plan: Planned, *, estimated: bool = False
) -> Iterator[Share]:
    origin, name, work = provenance(node), base_name(node.target), plan.work(node.name)
    parts = plan.owners.parts(node)
    for module, begins, ends, _ in parts:
        of = Origin(node.name, name, origin.phase, module, origin.line)
        own = work if len(parts) == 1 else work.between(begins, ends)
        yield Share(of, of_call * (ends - begins), own, estimated)
