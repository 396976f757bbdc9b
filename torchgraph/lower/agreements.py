"""Collective agreement of ranks on whether the predicates of a communicating program hold."""

from __future__ import annotations

from ..ir import effects
from ..ir.program import Program
from ..ir.rewriter import Rewriter
from ..library.agree import agree


def communicates(program: Program) -> bool:
    """True when a run of the program meets other ranks."""
    return any(effects.of(node).communicates for node in program.nodes)


def with_agreements(program: Program) -> Program:
    """``program``, or a copy in which ranks meet behind its predicates.

    They meet before the next collective, which a rank whose predicate failed never enters, and
    behind the last predicate: that rank runs the step in eager, and needs the others for it.
    """
    nodes = list(program.nodes)
    pending = None
    places = []
    for node in nodes:
        found = effects.of(node)
        if found.expects:
            pending = node
        elif pending is not None and (found.communicates or node.op == "output"):
            places.append((pending, node))
            pending = None
    if not places:
        return program
    program = program.copy()
    copies = {node.name: node for node in program.nodes}
    edit = Rewriter(program, "agreements")
    for expects, before in places:
        at = copies[before.name]
        if before.op == "output":
            at = copies[expects.name].next
        edit.call(agree, (), before=at, like=copies[expects.name])
    return program
