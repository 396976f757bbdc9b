"""Compute what depends on weights and constants alone shortly before its first use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import fx

from ..ir import effects
from ..ir.aliasing import alias_sources
from ..ir.program import OutputKind, Program, Role
from ..ir.rewriter import Rewriter
from .base import Pass

_STATES = frozenset({Role.PARAMETER, Role.BUFFER, Role.FREE})


@dataclass(frozen=True)
class DelayVariables(Pass):
    """Moves casts, scalings and other derivations of weights down to their first reader.

    A program that casts all its weights at the top holds all copies at once; one that casts each
    before its layer holds one. Nothing lives longer than before: what a moved node reads is an
    input, a constant, or moves with it. Only in programs that update nothing: a weight that is read
    later could not be written in place. OneFlow: DelayVariableOpExecution.
    """

    name: ClassVar[str] = "delay_variables"
    rows: ClassVar[bool] = True

    def exact(self, program: Program) -> bool:
        """Always: the same ops on the same values."""
        return True

    def apply(self, program: Program, edit: Rewriter) -> None:
        """Walk backwards, so that a chain follows its last node."""
        if any(out.kind is not OutputKind.USER for out in program.signature.outputs):
            return
        lasting, derived = _lasting(program), dict.fromkeys(_derived(program))
        for node in reversed(derived):
            if not node.users or node in lasting:
                continue
            if all(source in lasting or len(source.users) == 1 for source in node.all_input_nodes):
                _delay(node, derived, edit)


def _delay(node: fx.Node, derived: dict[fx.Node, None], edit: Rewriter) -> None:
    """Move ``node`` before its first reader, unless only others of its kind are between them."""
    between = False
    reader = node.next
    while reader not in node.users:
        between = between or (reader.op == "call_function" and reader not in derived)
        reader = reader.next
    if between:
        edit.move(node, before=reader)


def _lasting(program: Program) -> set[fx.Node]:
    """States of the user, constants, and views of them: they cost nothing, whenever they come."""
    specs = program.inputs()
    found = {node for spec, node in specs if spec.role in _STATES}
    for node in program.nodes:
        sources = alias_sources(node)
        if node.op == "get_attr" or (sources and all(source in found for source in sources)):
            found.add(node)
    return found


def _derived(program: Program) -> Iterator[fx.Node]:
    """In program order, the pure calls that compute from states and constants alone."""
    specs = program.inputs()
    found = {node for spec, node in specs if spec.role in _STATES}
    for node in program.nodes:
        known = all(source in found for source in node.all_input_nodes)
        if node.op == "get_attr":
            found.add(node)
        elif node.op == "call_function" and known and effects.of(node).pure:
            found.add(node)
            yield node
