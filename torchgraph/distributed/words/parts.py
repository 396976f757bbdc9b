"""Shards of a tensor on the ranks of a mesh: the whole tensor, and its even split."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..errors import PlacementMismatch
from .sbp import sbp

Place = tuple[int, ...]


class Parts:
    """Shapes of the shards of one tensor on the ranks of a mesh.

    Args:
        told: place in the mesh -> (shape, dtype) of the shard there.
        grid: the shape of the mesh.
        how: the layout of the tensor, by dimension of the mesh.

    Raises:
        PlacementMismatch: the shards are not of one tensor.
    """

    def __init__(
        self, told: Mapping[Place, tuple[Sequence[int], str]], grid: Place, how: Sequence[sbp]
    ) -> None:
        self._told, self._grid, self._how = told, grid, how
        if len({(len(shape), dtype) for shape, dtype in told.values()}) > 1:
            raise PlacementMismatch(f"The ranks hold {self._listed()}: no parts of one tensor.")
        self.shape = self._together(lambda place: list(told[place][0]), self._summed)
        """The whole tensor's."""

    @property
    def stride(self) -> tuple[int, ...]:
        """The stride of a contiguous tensor of the whole shape."""
        sizes = [max(size, 1) for size in self.shape]
        return tuple(torch.Size(sizes[at + 1 :]).numel() for at in range(len(sizes)))

    @property
    def are_even(self) -> bool:
        """True when the shards are those into which DTensor splits a tensor."""
        return all(list(shape) == self._sizes(at) for at, (shape, _) in self._told.items())

    @property
    def words(self) -> str:
        """The shapes of the shards, for an error message."""
        return ", ".join(str(list(shape)) for shape, _ in self._told.values())

    @property
    def even_words(self) -> str:
        """The shapes of an even split, for an error message."""
        return ", ".join(str(self._sizes(at)) for at in self._told)

    def together(self, held: Mapping[Place, torch.Tensor]) -> torch.Tensor:
        """The whole tensor, joined from its shards."""

        def join(one: sbp, parts: list[torch.Tensor]) -> torch.Tensor:
            if one.kind == "split":
                return torch.cat(parts, one.dim or 0)
            return sum(parts[1:], parts[0]) if one.kind == "partial_sum" else parts[0]

        whole: torch.Tensor = self._together(held.__getitem__, join)
        return whole

    def even(self, whole: torch.Tensor, place: Place) -> torch.Tensor:
        """The even shard at a place of the mesh; of partial sums, the whole at the first place."""
        for at, count, one in zip(place, self._grid, self._how, strict=True):
            if one.dim is not None:
                start, size = _chunk(whole.shape[one.dim], count, at)
                whole = whole.narrow(one.dim, start, size)
            elif one.kind == "partial_sum" and at:
                whole = torch.zeros_like(whole)
        return whole

    def _sizes(self, place: Place) -> list[int]:
        sizes = list(self.shape)
        for at, count, one in zip(place, self._grid, self._how, strict=True):
            if one.dim is not None:
                sizes[one.dim] = _chunk(sizes[one.dim], count, at)[1]
        return sizes

    def _together(self, held: Any, join: Any) -> Any:
        """Join values of all places, along the last dimension of the mesh first."""
        found = {place: held(place) for place in itertools.product(*map(range, self._grid))}
        for number in reversed(range(len(self._grid))):
            rows = itertools.product(*map(range, self._grid[:number]))
            found = {
                row: join(self._how[number], [found[(*row, i)] for i in range(self._grid[number])])
                for row in rows
            }
        return found[()]

    def _summed(self, one: sbp, shapes: list[list[int]]) -> list[int]:
        others = [shape[:] for shape in shapes]
        if one.dim is not None:
            for shape in others:
                shape[one.dim] = sum(each[one.dim] for each in shapes)
        if any(shape != others[0] for shape in others):
            raise PlacementMismatch(f"The ranks hold {self._listed()}: no parts of one tensor.")
        return others[0]

    def _listed(self) -> str:
        return ", ".join(f"{dtype}{list(shape)}" for shape, dtype in self._told.values())


def _chunk(size: int, count: int, number: int) -> tuple[int, int]:
    """The start and size of one chunk, as `torch.chunk` splits."""
    most = -(-size // count)
    start = min(number * most, size)
    return start, min(most, size - start)
