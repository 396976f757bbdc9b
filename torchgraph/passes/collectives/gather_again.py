"""ZeRO's third stage: parameters are gathered for the forward, and once more for the backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import fx

from ...ir import effects
from ...ir.program import Phase, Program, Role, provenance
from ...ir.rewriter import Rewriter
from ..base import Pass

_GATHERS = "all_gather_into_tensor"


@dataclass(frozen=True)
class GatherAgain(Pass):
    """Lets the backward gather the parameters that it reads, instead of keeping the forward's.

    What is gathered is computed from parameters alone, which do not change before the update: it is
    the same both times. It is found by that, not by what the ops look like. Each is begun before
    the op that first reads the one before it: one is ahead, so that communication is hidden, and no
    more, for their memory. Runs after `OverlapCollectives`, whose collectives of gradients it lets
    be. ZeRO: arXiv 1910.02054, section 5.
    """

    name: ClassVar[str] = "gather_again"
    removes: ClassVar[frozenset[str]] = frozenset({"_c10d_functional"})
    rows: ClassVar[bool] = True

    def exact(self, program: Program) -> bool:
        """Always: the same ops on the same values."""
        return True

    def apply(self, program: Program, edit: Rewriter) -> None:
        """Repeat gathered values for the backward's nodes, in order; erase unread ones."""
        gathered = _gathered(program)
        again = _Again(gathered, edit)
        for node in list(program.nodes):
            if node.op == "call_function" and provenance(node).phase is Phase.BACKWARD:
                again.read_by(node)
        for node in reversed(list(gathered)):
            if not node.users:
                edit.erase(node)


class _Again:
    """The copies that were made so far."""

    def __init__(self, gathered: dict[fx.Node, None], edit: Rewriter) -> None:
        self._gathered, self._edit = gathered, edit
        self._order = {node: place for place, node in enumerate(gathered)}
        self._copies: dict[fx.Node, fx.Node] = {}
        self._ahead: fx.Node | None = None
        """Before it the next one is begun."""

    def read_by(self, node: fx.Node) -> None:
        """Let a node of the backward read copies."""
        if node in self._gathered:
            return
        for source in list(node.all_input_nodes):
            if source in self._gathered:
                self._edit.rewire(node, source, self._copy(source, node))

    def _copy(self, node: fx.Node, reader: fx.Node) -> fx.Node:
        missing = self._missing(node)
        begins = any(effects.of(one).communicates for one in missing)
        before = reader if self._ahead is None else self._ahead
        for one in missing:
            if effects.of(one).waits:
                before = reader
            self._copies[one] = self._edit.repeat(one, self._copies, before=before, region=-1)
        if begins:
            self._ahead = reader
        return self._copies[node]

    def _missing(self, node: fx.Node) -> list[fx.Node]:
        """The gathered nodes to repeat for ``node``, itself last."""
        found: set[fx.Node] = set()
        pending = [node]
        while pending:
            one = pending.pop()
            if one in self._gathered and one not in self._copies and one not in found:
                found.add(one)
                pending += one.all_input_nodes
        return sorted(found, key=self._order.__getitem__)


def _gathered(program: Program) -> dict[fx.Node, None]:
    """Collectives that gather parameters and pure ops on their results, in program order."""
    derived = {node for spec, node in program.inputs() if spec.role is Role.PARAMETER}
    found: dict[fx.Node, None] = {}
    for node in program.nodes:
        if node.op != "call_function" or provenance(node).phase is not Phase.FORWARD:
            continue
        known = effects.of(node)
        gathers = known.communicates and _GATHERS in str(node.target)
        sources = node.all_input_nodes
        repeats = known.pure or known.waits or gathers
        if not repeats or not sources or not derived.issuperset(sources):
            continue
        derived.add(node)
        if gathers or any(source in found for source in sources):
            found[node] = None
    return found
