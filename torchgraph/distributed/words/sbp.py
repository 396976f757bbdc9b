"""``tg.sbp``: how a tensor lies on the ranks of a placement: split, broadcast or as partial sums.

OneFlow: ``oneflow.sbp``. The layouts are DTensor's: ``Shard``, ``Replicate``, ``Partial``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..._torch.distributed import layouts
from ..._torch.distributed.held import is_dtensor
from ..errors import PlacementMismatch


@dataclass(frozen=True, repr=False)
class sbp:
    """Layout of a tensor along one dimension of a placement; made by the names of this module."""

    kind: str
    dim: int | None = None

    def __call__(self) -> sbp:
        """The object itself, so that ``sbp.broadcast()`` is ``sbp.broadcast``."""
        return self

    def __repr__(self) -> str:
        return f"torchgraph.sbp.{self.kind}" + ("" if self.dim is None else f"(dim={self.dim})")

    @property
    def layout(self) -> Any:
        """The layout as DTensor's `Placement`."""
        module = layouts.dtensor()
        if self.kind == "split":
            return module.Shard(self.dim)
        return module.Replicate() if self.kind == "broadcast" else module.Partial()


broadcast = sbp("broadcast")
"""Each rank holds the whole tensor."""
partial_sum = sbp("partial_sum")
"""The tensor is the sum of what the ranks hold."""


def split(dim: int) -> sbp:
    """Each rank holds a part of dimension ``dim``, in order; the first ones hold more.

    Raises:
        PlacementMismatch: ``dim`` is no int, or negative.
    """
    if type(dim) is not int or dim < 0:
        raise PlacementMismatch(
            f"sbp.split takes a dimension counted from 0, not {dim!r}.", fix="sbp.split(0)"
        )
    return sbp("split", dim)


def of(tensor: torch.Tensor) -> tuple[sbp, ...]:
    """The layout of a DTensor, by dimension of its mesh. OneFlow: ``tensor.sbp``.

    Raises:
        PlacementMismatch: it is none, or lies as no word says.
    """
    if not is_dtensor(tensor):
        raise PlacementMismatch("sbp.of takes a DTensor, and this tensor is on one rank alone.")
    module, found = layouts.dtensor(), []
    held: Any = tensor
    for layout in held.placements:
        if type(layout) is module.Shard:
            found.append(split(layout.dim % tensor.ndim))
        elif layout == module.Replicate():
            found.append(broadcast)
        elif layout == module.Partial():
            found.append(partial_sum)
        else:
            raise PlacementMismatch(f"No sbp stands for {layout}.", fix="use DTensor's own names.")
    return tuple(found)


def each(given: object, count: int) -> tuple[sbp, ...]:
    """One layout for each dimension of a placement; a single one for a placement of one.

    Raises:
        PlacementMismatch: others than there are dimensions, or what is no sbp.
    """
    found = tuple(given) if isinstance(given, Sequence) else (given,)
    wrong = [one for one in found if not isinstance(one, sbp)]
    if wrong:
        fix = "sbp.split(0)" if wrong[0] is split else "sbp.split(d), sbp.broadcast, partial_sum"
        raise PlacementMismatch(f"{wrong[0]!r} is no sbp.", fix=fix)
    if len(found) != count:
        raise PlacementMismatch(
            f"{len(found)} sbp for a placement of {count} dimension{'s' * (count != 1)}.",
            fix=f"give {count}, one for each dimension of the ranks.",
        )
    return tuple(one for one in found if isinstance(one, sbp))
