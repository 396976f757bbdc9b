"""Collectives in a program: when each begins, and when its memory is free to be read and written.

Until the wait for it, a collective reads its argument and writes its result.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from . import effects
from .aliasing import storages_of


def waits_for(nodes: Iterable[fx.Node]) -> dict[fx.Node, fx.Node]:
    """Each collective, with the first node that waits for it; those that nobody waits for not."""
    begun: dict[int, fx.Node] = {}
    found: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        known = effects.of(node)
        if known.communicates:
            begun.update(dict.fromkeys(storages_of(node), node))
        elif known.waits:
            for storage in storages_of(node.all_input_nodes[0]):
                if storage in begun:
                    found.setdefault(begun[storage], node)
    return found
