"""Collectives between regions: which of them run beside a region, and what their results become."""

from __future__ import annotations

from collections.abc import Sequence, Set as AbstractSet

from torch import fx

from ...ir import effects
from ...ir.aliasing import alias_sources, waits_for


def begun_early(ops: Sequence[fx.Node], outside: AbstractSet[fx.Node]) -> set[fx.Node]:
    """The collectives between whose beginning and whose wait something is compiled."""
    waits = waits_for(ops)
    position = {node: at for at, node in enumerate(ops)}
    compiled = [at for at, node in enumerate(ops) if node not in outside]
    return {
        begun
        for begun, wait in waits.items()
        if any(position[begun] < at < position[wait] for at in compiled)
    }


def views_between(ops: Sequence[fx.Node], outside: AbstractSet[fx.Node]) -> set[fx.Node]:
    """Views of waited-for results that no compiled op reads: a region of these gains nothing."""
    found: set[fx.Node] = set()
    for node in ops:
        sources = alias_sources(node)
        known = sources and len(sources) == len(node.all_input_nodes)
        if known and all(effects.of(s).waits or s in found for s in sources):
            found.add(node)
    for node in reversed(ops):
        if node in found and any(u not in found and u not in outside for u in node.users):
            found.discard(node)
    return found - set(outside)


def wait_late(levels: dict[fx.Node, int], outside: AbstractSet[fx.Node]) -> None:
    """Give waits, and views of their results, the level of their first reader."""
    shown: dict[fx.Node, None] = {}
    for node in levels:
        view = node in outside and effects.of(node).pure and bool(alias_sources(node))
        if effects.of(node).waits or (view and any(s in shown for s in alias_sources(node))):
            shown[node] = None
    for node in reversed(shown):
        readers = [levels[user] for user in node.users if user in levels]
        levels[node] = max(levels[node], min(readers, default=levels[node]))
