"""Turn ``depend`` into plain order of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx

from .. import library
from ..ir.aliasing import escaping
from ..ir.program import Program
from ..ir.rewriter import Rewriter
from ..ir.values import same_layout
from .base import Pass


@dataclass(frozen=True)
class PruneDepend(Pass):
    """Lets the readers of ``depend(x, others)`` read ``x``: they stay where they are, after it.

    Until then the call is an edge that every pass respects: it is no common subexpression with
    ``x``, and what ``others`` need cannot move behind its readers. So this pass comes after all
    that merge or move. OneFlow: PruneDependOp.
    """

    name: ClassVar[str] = "prune_depend"
    rows: ClassVar[bool] = True

    def exact(self, program: Program) -> bool:
        """Always."""
        return True

    def apply(self, program: Program, edit: Rewriter) -> None:
        """Replace each node by its source, or by a copy where an output needs its own memory."""
        outward = escaping(program)
        for node in list(program.nodes):
            if node.target is not library.after:
                continue
            source = node.args[0]
            assert isinstance(source, fx.Node)
            if node not in outward and same_layout(node.meta["val"], source.meta["val"]):
                edit.replace(node, source)
                continue
            with edit.together():
                copy = edit.call(torch.ops.aten.clone.default, (source,), before=node, like=node)
                edit.replace(node, copy)
