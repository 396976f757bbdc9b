"""``tg.placement``: devices and the ranks that hold them. OneFlow: ``oneflow.placement``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..._torch.distributed import layouts
from ..._torch.distributed.held import is_dtensor
from ..errors import PlacementMismatch
from .process import get_world_size

Nested = int | Sequence["Nested"]
_DEVICES = ("cpu", "cuda")
_made: dict[tuple[int, placement], tuple[DeviceMesh, Any]] = {}
"""By the default process group: a mesh, and the group of all of its ranks."""


class placement:
    """A kind of device, and ranks: nested ones are a placement of more dimensions.

    Its `mesh` is made when it is first needed, by all ranks of the default process group at the
    same place of the program, and kept.

    Args:
        type: ``"cpu"`` or ``"cuda"``.
        ranks: ``[0, 1]``, ``[[0, 1], [2, 3]]``; each rank once.

    Raises:
        PlacementMismatch: another device, ranks that are not there, or do not form a grid.
    """

    def __init__(self, type: str, ranks: Nested) -> None:
        if type not in _DEVICES:
            meant = "cuda" if type == "gpu" else "cpu"
            raise PlacementMismatch(
                f"placement({type!r}, ...): the device is none of {', '.join(_DEVICES)}.",
                fix=f'placement("{meant}", ranks)',
            )
        self.type = type
        self.ranks: tuple[Any, ...] = _grid(ranks)
        """Nested as they were given."""
        self.shape = _shape(self.ranks)
        flat = list(_flat(self.ranks))
        world = get_world_size()
        wrong = [rank for rank in flat if not 0 <= rank < world]
        if wrong or len(set(flat)) != len(flat) or not flat:
            what = f"rank {wrong[0]} is not there" if wrong else "each rank is to be there once"
            raise PlacementMismatch(
                f"placement({type!r}, {_listed(self.ranks)}) with {world} rank{'s' * (world > 1)}: "
                f"{what}."
            )

    @classmethod
    def all(cls, type: str) -> placement:
        """A placement over all ranks."""
        return cls(type, list(range(get_world_size())))

    @classmethod
    def of(cls, tensor: torch.Tensor) -> placement:
        """The placement of a DTensor. OneFlow: ``tensor.placement``.

        Raises:
            PlacementMismatch: it is none.
        """
        if not is_dtensor(tensor):
            raise PlacementMismatch("placement.of takes a DTensor; this tensor is on one rank.")
        held: Any = tensor
        return cls(held.device_mesh.device_type, held.device_mesh.mesh.tolist())

    @property
    def ndim(self) -> int:
        """The number of dimensions of the mesh."""
        return len(self.shape)

    @property
    def members(self) -> tuple[int, ...]:
        """All ranks of the placement, in order."""
        return tuple(_flat(self.ranks))

    @property
    def mesh(self) -> DeviceMesh:
        """The placement as torch's `DeviceMesh`.

        Raises:
            PlacementMismatch: there is no process group, or no such device.
        """
        return self._mesh_and_group()[0]

    @property
    def group(self) -> Any:
        """The process group of all ranks of the placement."""
        return self._mesh_and_group()[1]

    def _mesh_and_group(self) -> tuple[DeviceMesh, Any]:
        if not (dist.is_available() and dist.is_initialized()):
            raise PlacementMismatch(
                f"{self!r} has no mesh: there is no process group.",
                fix="call torch.distributed.init_process_group() first.",
            )
        if self.type == "cuda" and not torch.cuda.is_available():
            raise PlacementMismatch(f"{self!r}: this machine has no GPU.", fix='placement("cpu")')
        key = (id(dist.group.WORLD), self)
        if key not in _made:
            mesh = layouts.mesh_of(self.type, _listed(self.ranks))
            whole = sorted(self.members) == list(range(dist.get_world_size()))
            group = dist.group.WORLD if whole else dist.new_group(sorted(self.members))
            _made[key] = mesh, group
        return _made[key]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, placement):
            return NotImplemented
        return (self.type, self.ranks) == (other.type, other.ranks)

    def __hash__(self) -> int:
        return hash((self.type, self.ranks))

    def __repr__(self) -> str:
        return f'torchgraph.placement(type="{self.type}", ranks={_listed(self.ranks)})'


def _grid(ranks: Any) -> tuple[Any, ...]:
    listed = ranks.tolist() if hasattr(ranks, "tolist") else ranks
    if isinstance(listed, int):
        listed = [listed]
    found = _tuples(listed)
    if not isinstance(found, tuple) or not _is_grid(found):
        raise PlacementMismatch(
            f"placement: {ranks!r} are no ranks: ints, nested as a grid.",
            fix='placement("cpu", [0, 1]), placement("cpu", [[0, 1], [2, 3]])',
        )
    return found


def _tuples(ranks: Any) -> Any:
    if isinstance(ranks, (list, tuple, range)):
        return tuple(map(_tuples, ranks))
    return ranks


def _is_grid(ranks: Any) -> bool:
    if all(type(rank) is int for rank in ranks):
        return True
    nested = all(isinstance(rank, tuple) and _is_grid(rank) for rank in ranks)
    return nested and len({_shape(rank) for rank in ranks}) == 1


def _shape(ranks: tuple[Any, ...]) -> tuple[int, ...]:
    inner = _shape(ranks[0]) if ranks and isinstance(ranks[0], tuple) else ()
    return (len(ranks), *inner)


def _flat(ranks: Any) -> Iterator[int]:
    for rank in ranks:
        if isinstance(rank, tuple):
            yield from _flat(rank)
        else:
            yield rank


def _listed(ranks: Any) -> Any:
    return [_listed(rank) if isinstance(rank, tuple) else rank for rank in ranks]
