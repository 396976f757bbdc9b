"""DTensors that are computed with element by element lie alike, or are moved until they do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .._torch.distributed.held import layout_of, local


def parts_as(tensors: Sequence[torch.Tensor], like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What lies in this process of ``tensors``, each laid out as the one of ``like`` beside it.

    A tensor that is no DTensor stays what it is: a counter, which all ranks have.
    """
    pairs = zip(tensors, like, strict=True)
    return [local(tensor if one is tensor else _moved(tensor, one)) for tensor, one in pairs]


def _moved(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    own, wanted = layout_of(tensor), layout_of(like)
    if own is None or wanted is None or own.placements == wanted.placements:
        return tensor
    held: Any = tensor
    moved: torch.Tensor = held.redistribute(wanted.mesh, wanted.placements)
    return moved
