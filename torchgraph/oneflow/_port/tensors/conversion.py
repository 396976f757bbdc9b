"""From and to other dtypes, NumPy, and other tensors' elements."""

from __future__ import annotations

from typing import Any

import numpy
import torch
from torch import Tensor

from ...._torch.distributed.held import is_dtensor
from ..errors import NotPorted
from .printing import represent


def cast(input: Tensor, dtype: torch.dtype, pin_memory: bool = False) -> Tensor:
    """OneFlow: ``cast``."""
    found = input.to(dtype)
    return found.pin_memory() if pin_memory else found


def numpy_(self: Tensor) -> Any:
    """OneFlow: ``tensor.numpy``: of a tensor that requires a gradient, too; bfloat16 as float32.

    Of a global tensor it is the whole: all of its ranks call it.
    """
    found: Any = self.detach()
    found = found.full_tensor() if is_dtensor(found) else found
    return (found.float() if found.dtype == torch.bfloat16 else found).cpu().numpy()


def array(self: Tensor, dtype: Any = None, copy: bool | None = None) -> Any:
    """OneFlow: ``numpy.asarray(tensor)``."""
    found = numpy_(self)
    return found if dtype is None else found.astype(dtype, copy=bool(copy))


def copy_(self: Tensor, other: Any) -> None:
    """OneFlow: ``tensor.copy_``: of an array, too, of this dtype and shape; gives nothing back."""
    if isinstance(other, numpy.ndarray):
        other = torch.from_numpy(numpy.ascontiguousarray(other))
        if other.dtype != self.dtype or other.shape != self.shape:
            raise NotPorted(
                f"copy_ from an array of {other.dtype}, {tuple(other.shape)}.",
                fix=f"make it {self.dtype}, {tuple(self.shape)}.",
            )
    with torch.no_grad():
        self.copy_(other)


def type_(self: Tensor, dtype: Any = None) -> Any:
    """OneFlow: ``tensor.type``: ``oneflow.FloatTensor``, or the tensor in another dtype."""
    if dtype is None:
        return self.type().replace("torch.", "oneflow.", 1)
    if isinstance(dtype, str):
        dtype = dtype.replace("oneflow.", "torch.", 1)
    return self.type(dtype if isinstance(dtype, (str, torch.dtype)) else dtype.dtype)


def format_(self: Tensor, spec: str) -> str:
    """OneFlow: ``f"{tensor}"``."""
    return format(self.item(), spec) if not self.dim() else format(represent(self), spec)


def erfinv_(input: Tensor) -> Tensor:
    """OneFlow: ``erfinv_``."""
    return input.erfinv_()


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """OneFlow: ``nms``: indices of the boxes kept, the best first, int64.

    Args:
        boxes: (n, 4), as x0, y0, x1, y1.
        scores: (n,).
        iou_threshold: a box that overlaps a better one by more is left out.
    """
    order = torch.argsort(scores, descending=True, stable=True)
    ordered = boxes[order]
    area = (ordered[:, 2] - ordered[:, 0]) * (ordered[:, 3] - ordered[:, 1])
    low = torch.maximum(ordered[:, None, :2], ordered[None, :, :2])
    high = torch.minimum(ordered[:, None, 2:], ordered[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    overlaps = shared / (area[:, None] + area[None] - shared) > iou_threshold
    is_kept = torch.ones(len(order), dtype=torch.bool, device=boxes.device)
    for at in range(len(order)):
        if is_kept[at]:
            is_kept[at + 1 :] &= ~overlaps[at, at + 1 :]
    return order[is_kept]
