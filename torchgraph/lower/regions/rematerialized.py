"""Copies of forward values that `Rematerialize` made, where one compiled function sees both."""

from __future__ import annotations

from collections.abc import Hashable

from torch import fx

from ...ir.program import RECOMPUTED, REMATERIALIZED, Program
from ...passes.cse import frozen


def merge_copies(program: Program, stages: dict[fx.Node, int]) -> None:
    """Let the backward read the value itself where its copy runs in the same stage.

    The value would be there anyway: a compiler computes equal values at once, and keeps both.

    Args:
        stages: of each op the part of the program that is compiled with it. What goes leaves it.
    """
    copies = {n for n in program.nodes if n.meta.get(RECOMPUTED) == REMATERIALIZED}
    targets = {copy.target for copy in copies}
    same: dict[fx.Node, fx.Node] = {}
    first: dict[Hashable, fx.Node] = {}
    for node in [node for node in program.nodes if node.target in targets]:
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda one: same.get(one, one))
        key = (node.target, frozen(args), frozen(kwargs))
        try:
            original = same[node] = first.setdefault(key, node)
        except TypeError:  # an argument that cannot be compared
            continue
        alike = original not in copies and stages[original] == stages[node]
        if node in copies and alike:
            node.replace_all_uses_with(original)
    for copy in reversed(list(program.nodes)):
        if copy in copies and not copy.users:
            program.gm.graph.erase_node(copy)
            del stages[copy]
