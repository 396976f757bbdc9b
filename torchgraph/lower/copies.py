"""Copies of what a run writes while an op may still raise, to take it back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .._torch import foreach


class Copies:
    """Copies of some of the values that a run takes, from its start. Their memory is kept.

    Args:
        places: of the values, among all that the run takes.
    """

    def __init__(self, places: Sequence[int]) -> None:
        self.places = tuple(places)
        self._groups: list[tuple[list[int], list[torch.Tensor]]] = []
        """Places and copies of what one call copies."""
        self._are_whole = False

    def take(self, values: Sequence[Any]) -> None:
        """Copy the values at the start of a run."""
        self._are_whole = False
        if not self._groups:
            self._make_room(values)
        for places, copies in self._groups:
            foreach.copy_(copies, [values[i] for i in places])
        self._are_whole = True

    def put_back(self, values: Sequence[Any]) -> None:
        """Restore the values after a failed run."""
        if self._are_whole:  # else it has not begun
            for places, copies in self._groups:
                foreach.copy_([values[i] for i in places], copies)

    def _make_room(self, values: Sequence[Any]) -> None:
        found: dict[object, list[int]] = {}
        for place in self.places:
            value = values[place]
            # A kernel of a GPU copies many tensors of one dtype; the CPU goes through them.
            kind = (value.device, value.dtype if value.is_cuda else None)
            found.setdefault(kind, []).append(place)
        self._groups = [
            (places, [torch.empty_like(values[place]) for place in places])
            for places in found.values()
        ]
