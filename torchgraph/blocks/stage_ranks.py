"""The ranks that a placement of a pipeline stage names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..errors import InvalidOption
from ..options.checking import shown


def ranks_of(placement: Any) -> tuple[int, ...]:
    """The ranks of a placement, in its order.

    Args:
        placement: a rank, ranks in any nesting, a `torch.distributed.device_mesh.DeviceMesh`, or
            any object that has ``ranks`` or ``mesh``, as ``tg.placement`` has.

    Raises:
        InvalidOption: it names no ranks.
    """
    found = list(_flat(_listed(placement)))
    if not found or any(type(rank) is not int or rank < 0 for rank in found):
        raise InvalidOption(
            f"set_stage: {shown(placement)} names no ranks.",
            fix="a rank, a list of ranks, a placement or a DeviceMesh.",
        )
    if len(set(found)) < len(found):
        raise InvalidOption(f"set_stage: {shown(placement)} names a rank twice.")
    return tuple(found)


def _listed(placement: Any) -> Any:
    for name in ("ranks", "mesh"):
        held = getattr(placement, name, None)
        if held is not None and not callable(held):
            placement = held
            break
    return placement.tolist() if isinstance(placement, torch.Tensor) else placement


def _flat(ranks: Any) -> Iterable[Any]:
    if isinstance(ranks, (list, tuple, range)):
        for one in ranks:
            yield from _flat(one)
    else:
        yield ranks
