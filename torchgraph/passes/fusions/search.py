"""The search that fusions share: a walk over the nodes, with a reason for each refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import fx

from ...ir.program import Program
from ...ir.rewriter import Rewriter

Fusion = TypeVar("Fusion")


class NotFused(Exception):
    """The reason why a match of a fusion's pattern stays as it was captured."""


def fuse_each(
    program: Program,
    find: Callable[[fx.Node], Fusion | None],
    fuse: Callable[[Fusion, Rewriter], None],
    edit: Rewriter,
) -> None:
    """Fuse what ``find`` finds around a node; each node is looked at once, in program order.

    A node for which ``find`` raises `NotFused` is refused.
    """
    for node in list(program.nodes):
        try:
            found = find(node)
        except NotFused as reason:
            edit.refuse(node, str(reason))
            continue
        if found is not None:
            with edit.together():
                fuse(found, edit)
