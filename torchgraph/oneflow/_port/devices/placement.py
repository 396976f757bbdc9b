"""``oneflow.placement``: ranks and their devices, as scripts of all versions write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ....distributed.errors import PlacementMismatch
from ....distributed.words import env, placement as words
from . import on_cpu


class placement:
    """A kind of device and ranks, over `torchgraph.placement`. OneFlow: ``oneflow.placement``.

    Args:
        type: ``"cpu"`` or ``"cuda"``; once called ``device_type``.
        ranks: a list, nested for a grid. Once a dict, ``{machine: devices}``, called
            ``device_ids``, and ``hierarchy`` its shape.

    Raises:
        PlacementMismatch: a device or ranks that are not there.
    """

    def __init__(
        self,
        type: str | None = None,
        ranks: Any = None,
        hierarchy: tuple[int, ...] | None = None,
        *,
        device_type: str | None = None,
        device_ids: Any = None,
    ) -> None:
        kind, where = type or device_type, device_ids if ranks is None else ranks
        if kind is None or where is None:
            raise PlacementMismatch(
                "placement takes a kind of device and ranks.", fix='placement("cuda", [0, 1])'
            )
        if isinstance(where, Mapping):
            where = _of_machines(where)
        if hierarchy is not None:
            where = np.asarray(where).reshape(hierarchy).tolist()
        self.words = words(on_cpu.meant(kind), where)
        """torchgraph's own."""

    @staticmethod
    def all(type: str) -> placement:
        """All ranks."""
        return placement(type, list(range(env.get_world_size())))

    @classmethod
    def of(cls, found: words) -> placement:
        """The one around torchgraph's own."""
        return cls(found.type, found.ranks)

    @property
    def type(self) -> str:
        return self.words.type

    device_type = type

    @property
    def ranks(self) -> np.ndarray:
        """An int array in the shape of the grid."""
        return np.asarray(self.words.ranks)

    @property
    def hierarchy(self) -> tuple[int, ...]:
        """The shape of the grid."""
        return self.words.shape

    def __eq__(self, other: object) -> bool:
        return self.words == other.words if isinstance(other, placement) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.words)

    def __repr__(self) -> str:
        return f'oneflow.placement(type="{self.type}", ranks={self.ranks.tolist()})'


def _of_machines(devices: Mapping[int, Any]) -> list[int]:
    """Ranks of ``{machine: devices}``: each machine has as many as this one."""
    each = -(-env.get_world_size() // env.get_node_size())
    listed = {at: [one] if isinstance(one, int) else list(one) for at, one in devices.items()}
    return [at * each + one for at, ones in listed.items() for one in ones]


def all_device_placement(type: str) -> placement:
    """All ranks. OneFlow: ``oneflow.env.all_device_placement``."""
    return placement.all(type)
