"""Whether two trainings came to the same, to the bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of what is no dict, list or tuple."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from leaves(item, f"{path}[{number}]")
    else:
        yield path, value


def differences(left: Any, right: Any) -> list[str]:
    """The paths where two values are not the same to the bit, NaN in one place included."""
    ours, theirs = dict(leaves(left)), dict(leaves(right))
    apart = sorted(ours.keys() ^ theirs.keys())
    return apart + [
        path for path in ours.keys() & theirs.keys() if not _same(ours[path], theirs[path])
    ]


def _same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return _bits(left) == _bits(right)
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.tobytes() == right.tobytes()
    return bool(left == right) or (left != left and right != right)


def _bits(tensor: torch.Tensor) -> tuple[Any, ...]:
    whole = tensor.detach().contiguous().flatten()
    return (
        tensor.dtype,
        tensor.shape,
        whole.view(torch.uint8).numpy().tobytes() if whole.numel() else b"",
    )
