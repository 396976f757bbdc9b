"""The minimum cut of a network between its source and its sink, by networkx."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

Edge = tuple[object, object, int | None]
"""Tail, head, and capacity; None: no cut may cross it."""


def sink_side(edges: Iterable[Edge], source: object, sink: object) -> set[Any]:
    """The vertices on the sink's side of a minimum cut: of the one closest to the sink.

    There is one such cut, whatever the order of the edges.

    Raises:
        networkx.NetworkXUnbounded: a path of edges without capacity leads from source to sink.
    """
    networkx: Any = importlib.import_module("networkx")  # whose import takes a quarter of a second
    graph = networkx.DiGraph()
    graph.add_nodes_from((source, sink))
    for tail, head, capacity in edges:
        graph.add_edge(tail, head, **({} if capacity is None else {"capacity": capacity}))
    _, (_, found) = networkx.minimum_cut(graph, source, sink)
    side: set[Any] = found
    return side
