"""Values that collectives compute from parameters alone, the same for all micro-batches."""

from __future__ import annotations

from collections.abc import Container, Iterable

from torch import fx

from ..ir import effects
from ..ir.aliasing import storages_of
from ..ir.program import Phase, Program, Role, provenance


class Gathered:
    """The parameters that a step gathers before it computes with them.

    Args:
        late: what runs once a step, behind the micro-batches.
        written: parameters that a micro-batch writes, by their fqns.
    """

    def __init__(self, program: Program, late: Container[fx.Node], written: Container[str]) -> None:
        weights = {
            node
            for spec, node in program.inputs()
            if spec.role is Role.PARAMETER and spec.fqn not in written
        }
        self._behind: set[fx.Node] = set()
        """Nodes computed from parameters alone."""
        self._gathered: set[fx.Node] = set()
        """The nodes among `_behind` that depend on a collective."""
        for node in program.nodes:
            if node.op == "call_function" and node not in late and self._known(node, weights):
                self._behind.add(node)
                if _communicates(node) or not self._gathered.isdisjoint(node.all_input_nodes):
                    self._gathered.add(node)
        self.again = any(
            _communicates(node) and provenance(node).phase is Phase.BACKWARD
            for node in self._gathered
        )
        """True where the backward gathers for itself, so that nothing is kept for it."""
        read = [node for node in program.nodes if node in self._gathered and self._is_read(node)]
        self.values: list[fx.Node] = list(dict.fromkeys(map(self._base, read)))
        """The gathered values to keep, each in memory of its own."""

    def makes(self, values: Iterable[fx.Node]) -> set[fx.Node]:
        """The nodes computed from parameters alone that ``values`` depend on, and themselves."""
        found: set[fx.Node] = set()
        pending = [node for node in values if node in self._behind]
        while pending:
            node = pending.pop()
            if node not in found:
                found.add(node)
                pending += [one for one in node.all_input_nodes if one in self._behind]
        return found

    def unread(self, held: Container[fx.Node]) -> set[fx.Node]:
        """The nodes computed from parameters alone that nothing needs once ``held`` are given."""
        needed: set[fx.Node] = set()
        pending = [node for node in self._behind if self._is_read(node)]
        while pending:
            node = pending.pop()
            if node not in needed and node not in held:
                needed.add(node)
                pending += [one for one in node.all_input_nodes if one in self._behind]
        return self._behind - needed

    def _is_read(self, node: fx.Node) -> bool:
        """True for a node with readers outside of the computation from parameters alone."""
        return any(user not in self._behind for user in node.users)

    def _known(self, node: fx.Node, weights: set[fx.Node]) -> bool:
        found, inputs = effects.of(node), node.all_input_nodes
        makes = found.pure or _communicates(node) or found.waits
        given = (one in weights or one in self._behind or one.op == "get_attr" for one in inputs)
        return bool(inputs) and makes and all(given)

    def _base(self, node: fx.Node) -> fx.Node:
        """The node that allocated the storage of ``node``, or the wait for a collective into it."""
        own = set(storages_of(node))
        while not effects.of(node).waits:
            sources = (one for one in node.all_input_nodes if one in self._gathered)
            viewed = next((one for one in sources if own.intersection(storages_of(one))), None)
            if viewed is None:
                break
            node = viewed
        return node


def _communicates(node: fx.Node) -> bool:
    found = effects.of(node)
    return found.communicates and not (found.mutates or found.random or found.expects)
