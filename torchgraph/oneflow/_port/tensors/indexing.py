"""Taking and putting by index, and ``where``, with OneFlow's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import NotPorted


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """OneFlow: ``index_select``. An index without dimensions takes the dim away."""
    found = torch.index_select(input, dim, index)
    return found if index.dim() else found.squeeze(dim)


_python_slice = slice


def _coordinates(index: Tensor) -> tuple[Tensor, ...]:
    return tuple(index.to(torch.int64).unbind(-1))


def gather_nd(input: Tensor, index: Tensor) -> Tensor:
    """OneFlow: ``gather_nd``: ``index`` holds coordinates in its last dim."""
    return input[_coordinates(index)]


def scatter_nd(index: Tensor, update: Tensor, shape: Sequence[int]) -> Tensor:
    """OneFlow: ``scatter_nd``: zeros of a shape, plus the updates at coordinates."""
    zeros = torch.zeros(tuple(shape), dtype=update.dtype, device=update.device)
    return zeros.index_put(_coordinates(index), update, accumulate=True)


def tensor_scatter_nd_update(tensor: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """OneFlow: ``tensor_scatter_nd_update``: a copy with other elements at coordinates."""
    return tensor.index_put(_coordinates(indices), updates)


def batch_gather(input: Tensor, indices: Tensor) -> Tensor:
    """OneFlow: ``batch_gather``: rows of each batch.

    Args:
        input: (..., n, ...), whose first dims are those of ``indices`` but its last.
        indices: (..., k). One dim: rows of all.
    """
    batch = indices.dim() - 1
    at = indices.to(torch.int64)
    at = at.reshape(at.shape + (1,) * (input.dim() - at.dim()))
    return torch.gather(input, batch, at.expand(*indices.shape, *input.shape[batch + 1 :]))


def _slices(slice_tup_list: Sequence[Sequence[int | None]]) -> tuple[Any, ...]:
    found = tuple(_python_slice(*one) for one in slice_tup_list)
    if any(one.step is not None and one.step < 0 for one in found):
        raise NotPorted("slice with a negative step is not here.", fix="flow.flip first.")
    return found


def slice(input: Tensor, slice_tup_list: Sequence[Sequence[int | None]]) -> Tensor:
    """OneFlow: ``slice``: a copy of (start, stop, step) of each dim."""
    return input[_slices(slice_tup_list)].clone()


def slice_update(
    input: Tensor, update: Tensor, slice_tup_list: Sequence[Sequence[int | None]]
) -> Tensor:
    """OneFlow: ``slice_update``: in place, and the tensor itself."""
    input[_slices(slice_tup_list)] = update
    return input


def where(condition: Tensor, x: Any = None, y: Any = None) -> Any:
    """OneFlow: ``where``. A Python float beside a tensor makes the result float64."""
    if x is None and y is None:
        return torch.where(condition)
    given = [isinstance(one, Tensor) for one in (x, y)]
    if any(given) and any(isinstance(one, float) for one in (x, y)):
        x, y = (one.to(torch.float64) if isinstance(one, Tensor) else one for one in (x, y))
    is_mixed = not any(given) and type(x) is not type(y)
    if is_mixed:
        raise NotPorted("where with two numbers takes two of one type in OneFlow 0.9.")
    return torch.where(condition.to(torch.bool), x, y)


def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """OneFlow: ``masked_fill``, with masks of any dtype."""
    return torch.masked_fill(input, mask.to(torch.bool), value)


def masked_fill_(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """OneFlow: ``masked_fill_``, with masks of any dtype."""
    return input.masked_fill_(mask.to(torch.bool), value)


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """OneFlow: ``masked_select``, with masks of any dtype.

    Raises:
        NotPorted: neither has dimensions, which OneFlow 0.9 gets wrong.
    """
    if not input.dim() and not mask.dim():
        raise NotPorted("masked_select without dimensions is wrong in OneFlow 0.9.", fix="x[None].")
    return torch.masked_select(input, mask.to(torch.bool))


def _reduced(reduce: str | None) -> dict[str, str]:
    if reduce == "multiply":
        raise NotPorted("scatter(reduce='multiply') is wrong in OneFlow 0.9.")
    return {"reduce": reduce} if reduce else {}


def scatter(
    input: Tensor, dim: int, index: Tensor, src: Any, *, reduce: str | None = None
) -> Tensor:
    """OneFlow: ``scatter``.

    Raises:
        NotPorted: ``reduce="multiply"``, which is wrong in OneFlow 0.9.
    """
    return torch.scatter(input, dim, index, src, **_reduced(reduce))  # type: ignore[call-overload, no-any-return]


def scatter_(
    self: Tensor, dim: int, index: Tensor, src: Any, *, reduce: str | None = None
) -> Tensor:
    """OneFlow: ``tensor.scatter_``."""
    return self.scatter_(dim, index, src, **_reduced(reduce))


def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Any = 1) -> Tensor:
    """OneFlow: ``index_add``, where ``alpha`` may be positional."""
    return torch.index_add(input, dim, index, source, alpha=alpha)


def index_add_(input: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Any = 1) -> Tensor:
    """OneFlow: ``index_add_``."""
    return input.index_add_(dim, index, source, alpha=alpha)
