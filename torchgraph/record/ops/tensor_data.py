"""Tensors of Python data with symbolic numbers in it: an op for each number of the data.

``torch.tensor([n])`` reads its data in C++, for which each number would have to stay as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..tape import number

_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def of_numbers(
    data: object, *, dtype: torch.dtype | None, device: Any = None
) -> torch.Tensor | None:
    """The tensor that ``torch.tensor`` makes of a number, or of nested lists of numbers.

    Args:
        dtype: None for the one that torch infers.

    Returns:
        None where no number is symbolic, or where C++ makes other values of them than an op.
    """
    shape = _shape(data)
    leaves = list(_leaves(data)) if shape is not None else []
    if not any(number.node_of(leaf) is not None for leaf in leaves):
        return None
    has_floats = any(isinstance(leaf, float) for leaf in leaves)
    if dtype is None:
        dtype = torch.get_default_dtype() if has_floats else torch.int64
    if dtype not in _FLOATS and (has_floats or dtype is not torch.int64):
        return None  # rounded, or checked for an overflow
    convert = _float if dtype in _FLOATS else _int
    made = [torch.scalar_tensor(convert(leaf), dtype=dtype, device=device) for leaf in leaves]
    return torch.stack(made).reshape(shape) if shape else made[0]


def _shape(data: object) -> tuple[int, ...] | None:
    """The shape of nested lists of numbers; None where they are ragged, or hold other things."""
    if not isinstance(data, (list, tuple)):
        return () if isinstance(data, (int, float)) else None
    shapes = {_shape(item) for item in data}
    inner = shapes.pop() if len(shapes) == 1 else None
    return None if inner is None else (len(data), *inner)


def _leaves(data: object) -> Iterator[Any]:
    if isinstance(data, (list, tuple)):
        for item in data:
            yield from _leaves(item)
    else:
        yield data


def _float(leaf: Any) -> Any:
    """C++ reads Python's data as doubles, where an op rounds an int just once."""
    node = number.node_of(leaf)
    return float(leaf) if node is None else number.written(node, float, (leaf,))


def _int(leaf: Any) -> Any:
    return int(leaf) if number.node_of(leaf) is None else leaf
