"""Dead code elimination: drop what nobody reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir import effects
from ..ir.program import Program
from ..ir.rewriter import Rewriter
from .base import Pass


@dataclass(frozen=True)
class DeadCode(Pass):
    """Erases nodes without users. Random draws stay: the draws after them must not shift."""

    name: ClassVar[str] = "dce"
    rows: ClassVar[bool] = True

    def exact(self, program: Program) -> bool:
        """Always."""
        return True

    def apply(self, program: Program, edit: Rewriter) -> None:
        """Walk backwards, so that one walk erases whole dead chains."""
        for node in reversed(list(program.nodes)):
            removable = node.op in ("call_function", "get_attr") and effects.of(node).pure
            if removable and not node.users:
                edit.erase(node)
