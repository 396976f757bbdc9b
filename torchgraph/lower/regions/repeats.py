"""Ops of the backward that deliberately recompute values of the forward.

`ActivationCheckpointing` marks its own; those of `torch.utils.checkpoint` are found here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping

from torch import fx

from ...ir import effects
from ...ir.aliasing import alias_sources, holds_memory
from ...ir.program import RECOMPUTED, REMATERIALIZED, Phase, Program, provenance
from ...passes.cse import frozen

RepeatedPart = tuple[str, int]
"""A stretch of the backward that repeats one part of the forward."""


def repeats(program: Program, stages: Mapping[fx.Node, int]) -> dict[fx.Node, RepeatedPart]:
    """The ops that repeat others of the same stage, and the part that they belong to.

    A single op is none: the gradients of some ops begin with what the op itself begins with.
    """
    found: dict[fx.Node, RepeatedPart] = {}
    same: dict[fx.Node, fx.Node] = {}
    first: dict[Hashable, fx.Node] = {}
    stretch, inside = 0, False
    for node in program.nodes:
        if node.op != "call_function" or not effects.of(node).pure:
            continue
        key = (
            node.target,
            frozen(fx.map_arg(node.args, lambda used: same.get(used, used))),
            frozen(fx.map_arg(dict(node.kwargs), lambda used: same.get(used, used))),
        )
        try:
            original = same[node] = first.setdefault(key, node)
        except TypeError:  # an argument that cannot be compared
            continue
        made_of_nothing = not node.all_input_nodes  # a mask, a range of numbers
        if made_of_nothing or alias_sources(node) or not holds_memory(node.meta.get("val")):
            continue
        if node.meta.get(RECOMPUTED) == REMATERIALIZED:
            continue  # it stays with its reader
        if stages.get(original, 0) != stages.get(node, 0):
            continue
        if RECOMPUTED in node.meta:
            found[node] = ("region", node.meta[RECOMPUTED])
        elif _phase(node) is not Phase.FORWARD and _phase(original) is Phase.FORWARD:
            stretch += not inside
            found[node] = ("stretch", stretch)
        inside = node in found
    sizes = Counter(found.values())
    return {node: part for node, part in found.items() if part[0] == "region" or sizes[part] > 1}


def _phase(node: fx.Node) -> Phase:
    return provenance(node).phase
