"""Rematerialization: the backward runs cheap ops of the forward again, where that keeps less."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import fx

from ...costs.activations import kept_by_node
from ...ir.aliasing import alias_sources, refresh_views
from ...ir.program import REMATERIALIZED, Program, Saving
from ...ir.rewriter import Rewriter
from ..base import Pass
from ..checkpointing import coins
from ..checkpointing.recompute import is_forward
from .min_cut import Edge, sink_side
from .prices import Prices

_MADE, _HELD = "made", "held"
"""The two vertices of a value: the edge between them is what keeping it costs."""


@dataclass(frozen=True)
class Rematerialize(Pass):
    """Lets the backward compute again what it reads of the forward, where keeping costs more.

    What is kept is the minimum cut between the ops that are never repeated and those that read in
    the backward, as in ``torch._functorch.partitioners.min_cut_rematerialization_partition``
    (Chen et al. 2016, *Training Deep Nets with Sublinear Memory Cost*; Jain et al. 2020,
    *Checkmate*). Of equally good cuts it is the one that repeats least. For programs whose forward
    and backward are compiled apart: one compiler that sees both computes equal ops once.
    """

    least: int = 8 << 20
    """Bytes to save in all; where it would be fewer, the program stays as it is."""
    name: ClassVar[str] = "rematerialize"

    def exact(self, program: Program) -> bool:
        """Always: the same op on the same values gives the same values."""
        return True

    def apply(self, program: Program, edit: Rewriter) -> None:
        """Choose what to repeat, and let its readers in the backward read copies."""
        least, before = max(self.least, 1), sum(kept_by_node(program).values())
        if before < least:
            return
        chosen = _choose(program)
        after = sum(kept_by_node(program, chosen.repeated).values())
        after -= sum(one.meta["val"].nbytes - one.meta["val"].numel() for one in chosen.packed)
        if before - after < least:
            return
        copies = _copy(program, chosen, edit)
        for node in reversed(list(program.nodes)):
            if node in chosen.repeated and not node.users:
                edit.erase(node)
        refresh_views(program)
        edit.savings.append(Saving(self.name, REMATERIALIZED, before, after, copies))


class _Chosen(NamedTuple):
    repeated: set[fx.Node]
    """The forward ops that the backward is to run again."""
    packed: set[fx.Node]
    """The draws that it is to read as bools."""


def _copy(program: Program, chosen: _Chosen, edit: Rewriter) -> int:
    """Let the backward read copies, each made before its first reader. How many there are."""
    order = {node: place for place, node in enumerate(program.nodes)}
    copies: dict[fx.Node, fx.Node] = {}

    def copy(node: fx.Node, before: fx.Node) -> fx.Node:
        if node not in chosen.packed:
            return edit.repeat(node, copies, before=before, region=REMATERIALIZED)
        packed = coins.pack(node, edit)
        return coins.unpack(packed, node, edit, before=before, region=REMATERIALIZED)

    for reader in _readers(program):
        for source in reader.all_input_nodes:
            if source not in chosen.repeated | chosen.packed:
                continue
            for node in sorted(_missing(source, chosen, copies), key=order.__getitem__):
                copies[node] = copy(node, reader)
            edit.rewire(reader, source, copies[source])
    return len(copies)


def _missing(value: fx.Node, chosen: _Chosen, copies: Container[fx.Node]) -> set[fx.Node]:
    """The values to compute again for ``value``, itself among them."""
    found: set[fx.Node] = set()
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if node in copies or node in found:
            continue
        if node in chosen.packed:
            found.add(node)
        elif node in chosen.repeated:
            found.add(node)
            waiting.extend(node.all_input_nodes)
    return found


def _choose(program: Program) -> _Chosen:
    prices = Prices(program)
    made, held = _behind_the_cut(program, prices)
    repeated: set[fx.Node] = set()
    for node in program.nodes:
        sources = alias_sources(node)
        if node in made and (not sources or not repeated.isdisjoint(sources)):
            repeated.add(node)  # a view of what is kept needs no second one
    return _Chosen(repeated, {node for node in held - made if prices.packs(node)})


def _behind_the_cut(program: Program, prices: Prices) -> tuple[set[fx.Node], set[fx.Node]]:
    """On the backward's side of the cut: what is computed there, and what can be read there."""
    waiting = [value for reader in _readers(program) for value in _of_forward(reader)]
    edges: list[Edge] = [((value, _HELD), "backward", None) for value in waiting]
    seen: set[fx.Node] = set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        edges.append(((node, _MADE), (node, _HELD), prices.keeping(node)))
        price = prices.computing(node)
        edges.append(("forward", (node, _MADE), price))
        for source in _of_forward(node) if price is not None else ():
            edges.append(((source, _HELD), (node, _MADE), None))
            waiting.append(source)
    side = sink_side(edges, "forward", "backward")
    made = {node for node in seen if (node, _MADE) in side}
    return made, {node for node in seen if (node, _HELD) in side}


def _readers(program: Program) -> Iterator[fx.Node]:
    """The ops of the backward and of the update."""
    for node in list(program.nodes):
        if node.op == "call_function" and not is_forward(node):
            yield node


def _of_forward(node: fx.Node) -> list[fx.Node]:
    """The arguments that the forward computes."""
    return [source for source in node.all_input_nodes if is_forward(source)]
