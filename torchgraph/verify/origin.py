"""The op that computes the value of a node, and the user's line that it comes from."""

from __future__ import annotations

import operator
from collections import deque

from torch import fx

from ..errors import SourceLine
from ..ir.nodes import operand
from ..ir.program import provenance


def op_of(node: fx.Node) -> str:
    """The op that computes it, be it one of several results."""
    source = operand(node) if node.target is operator.getitem else node
    return str(source.target)


def line_of(node: fx.Node | None) -> SourceLine | None:
    """The user's line of a node; of the nearest that it is computed from, where it has none."""
    waiting = deque([node] if node is not None else [])
    seen = set(waiting)
    while waiting:
        found = waiting.popleft()
        if provenance(found).line is not None:
            return provenance(found).line
        new = [source for source in found.all_input_nodes if source not in seen]
        seen.update(new)
        waiting.extend(new)
    return None
