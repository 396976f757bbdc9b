"""Let communication run while the program computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx

from ...ir import effects
from ...ir.aliasing import alias_sources
from ...ir.program import Program
from ...ir.rewriter import Rewriter
from ..base import Pass

aten = torch.ops.aten

_PACKING = frozenset(
    {aten.cat.default, aten.mul.Tensor, aten.clone.default, aten.zeros_like.default}
)
"""Ops that prepare gradients to be sent, besides views."""


@dataclass(frozen=True)
class OverlapCollectives(Pass):
    """Begins each collective as soon as its argument is there, waits for it when it is read.

    With a collective goes what packs its argument, with a wait nothing: both are moved, and none
    past another collective, a draw or a predicate, so that ranks meet in the order of eager's
    calls, which no pass sees. Torch's own scheduler (`torch._inductor.fx_passes`) weighs run times
    that it estimates for GPUs, and orders collectives anew; here nothing is to be weighed.
    """

    one_ahead: bool = False
    """Gathers begin one after the other, when the one before them is waited for: for memory."""

    name: ClassVar[str] = "overlap_collectives"
    rows: ClassVar[bool] = True

    def exact(self, program: Program) -> bool:
        """Always: the same ops on the same values."""
        return True

    def apply(self, program: Program, edit: Rewriter) -> None:
        """Delay waits, then advance collectives, which may move before a delayed wait."""
        found = [(node, effects.of(node)) for node in program.nodes]
        waits = [node for node, known in found if known.waits]
        begun = [node for node, known in found if known.communicates]
        for node in waits:
            _delay(node, edit)
        for node in begun:
            alone = self.one_ahead and "all_gather" in str(node.target)
            _hasten(node, {n: i for i, n in enumerate(program.nodes)}, edit, alone=alone)


def _delay(wait: fx.Node, edit: Rewriter) -> None:
    """Move ``wait``, and the views of what it gives, before the first node that reads them."""
    moving, passed, node = [wait], False, wait.next
    while node.op != "output":
        sources = alias_sources(node)
        reads = any(source in moving for source in node.all_input_nodes)
        if reads and not (sources and effects.of(node).pure):
            break
        if reads:
            moving.append(node)
        passed = passed or not reads
        node = node.next
    if passed and node.op != "output":
        with edit.together():
            for one in moving:
                edit.move(one, before=node)


def _hasten(begun: fx.Node, position: dict[fx.Node, int], edit: Rewriter, *, alone: bool) -> None:
    """Move a collective, and what packs its argument, behind the last node that they read.

    ``alone``: not past the wait for another one.
    """
    packing = _packing(begun)
    outside = [n for one in packing for n in one.all_input_nodes if n not in packing]
    last = max(map(position.__getitem__, outside), default=0)
    node = begun.prev
    while position[node] > last and not _stops(node, alone=alone):
        node = node.prev
    place = node.next
    while place in packing and place is not begun:
        place = place.next
    if place is begun:
        return
    with edit.together():
        for one in sorted(packing, key=position.__getitem__):
            if position[one] > position[place]:
                edit.move(one, before=place)


def _stops(node: fx.Node, *, alone: bool) -> bool:
    """True where a collective may not move past ``node``."""
    known = effects.of(node)
    return node.op != "call_function" or known.ordered or (alone and known.waits)


def _packing(begun: fx.Node) -> set[fx.Node]:
    """``begun``, and what is computed for it alone: views, their concatenation, a product."""
    found, pending = {begun}, [begun]
    while pending:
        for node in pending.pop().all_input_nodes:
            alone = found.issuperset(node.users) and node not in found
            view = bool(alias_sources(node)) and effects.of(node).pure
            if alone and node.op == "call_function" and (view or node.target in _PACKING):
                found.add(node)
                pending.append(node)
    return found
