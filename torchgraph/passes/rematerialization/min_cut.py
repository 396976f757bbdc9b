"""The minimum cut of a network between its source and its sink (Dinic 1970)."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

Vertex = TypeVar("Vertex", bound=Hashable)
UNBOUNDED = 1 << 62
"""The capacity of an edge that no cut may cross."""


class Network(Generic[Vertex]):
    """A directed network with capacities in integers; parallel edges add up."""

    def __init__(self, source: Vertex, sink: Vertex) -> None:
        self._numbers: dict[Vertex, int] = {}
        self._edges: list[list[int]] = []
        """Of each vertex, the numbers of the edges that leave it; edge e returns by ``e ^ 1``."""
        self._heads: list[int] = []
        self._room: list[int] = []
        """What an edge can still carry."""
        self._source, self._sink = self._number(source), self._number(sink)

    def edge(self, tail: Vertex, head: Vertex, capacity: int) -> None:
        """Add an edge."""
        for start, end, room in (
            (self._number(tail), self._number(head), capacity),
            (self._number(head), self._number(tail), 0),
        ):
            self._edges[start].append(len(self._heads))
            self._heads.append(end)
            self._room.append(room)

    def sink_side(self) -> set[Vertex]:
        """The vertices on the sink's side of a minimum cut: of the one closest to the sink.

        There is one such cut, whatever the order in which edges were added.

        Raises:
            ValueError: a path of edges without bound leads from the source to the sink.
        """
        while (levels := self._levels())[self._sink] >= 0:
            self._fill(levels)
        return {
            vertex for vertex, found in zip(self._numbers, self._reaching(), strict=True) if found
        }

    def _number(self, vertex: Vertex) -> int:
        if vertex not in self._numbers:
            self._numbers[vertex] = len(self._edges)
            self._edges.append([])
        return self._numbers[vertex]

    def _levels(self) -> list[int]:
        """Edges with room between the source and each vertex; -1 for one out of reach."""
        levels = [-1] * len(self._edges)
        levels[self._source] = 0
        waiting = deque([self._source])
        while waiting:
            vertex = waiting.popleft()
            for edge in self._edges[vertex]:
                head = self._heads[edge]
                if self._room[edge] and levels[head] < 0:
                    levels[head] = levels[vertex] + 1
                    waiting.append(head)
        return levels

    def _fill(self, levels: list[int]) -> None:
        """Send what shortest paths carry, until each of them has an edge without room."""
        tried = [0] * len(self._edges)
        path: list[int] = []
        vertex = self._source
        while True:
            if vertex == self._sink:
                self._send(path)
                path, vertex = [], self._source
            edge = self._next_edge(vertex, levels, tried)
            if edge is not None:
                path.append(edge)
                vertex = self._heads[edge]
            elif path:
                vertex = self._heads[path.pop() ^ 1]
                tried[vertex] += 1
            else:
                return

    def _next_edge(self, vertex: int, levels: list[int], tried: list[int]) -> int | None:
        edges = self._edges[vertex]
        while tried[vertex] < len(edges):
            edge = edges[tried[vertex]]
            if self._room[edge] and levels[self._heads[edge]] == levels[vertex] + 1:
                return edge
            tried[vertex] += 1
        return None

    def _send(self, path: list[int]) -> None:
        amount = min(self._room[edge] for edge in path)
        if amount >= UNBOUNDED // 2:
            raise ValueError("No cut is finite.")
        for edge in path:
            if self._room[edge] < UNBOUNDED // 2:
                self._room[edge] -= amount
            self._room[edge ^ 1] += amount

    def _reaching(self) -> list[bool]:
        """Which vertices a path with room leads to the sink from."""
        found = [False] * len(self._edges)
        found[self._sink] = True
        waiting = [self._sink]
        while waiting:
            for edge in self._edges[waiting.pop()]:
                tail = self._heads[edge]
                if self._room[edge ^ 1] and not found[tail]:
                    found[tail] = True
                    waiting.append(tail)
        return found
