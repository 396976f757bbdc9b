"""What is in containers: the items that names may lead to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .._torch import storage_id


def lies_in(tensor: torch.Tensor, storages: set[int]) -> bool:
    """True for a tensor in one of these."""
    return tensor.layout is torch.strided and storage_id(tensor) in storages


def keyed(container: Any) -> list[tuple[Any, Any]]:
    """(key, item) of what a path leads to in a container."""
    if isinstance(container, dict):
        return [row for row in dict.items(container) if type(row[0]) in (str, int, bool)]
    return list(enumerate(container)) if isinstance(container, (list, tuple)) else []


def has_more_than_tensors(container: Any) -> bool:
    """False for a container of tensors alone."""
    items = dict.values(container) if isinstance(container, dict) else container
    return not all(isinstance(item, torch.Tensor) for item in items)


def containers_in(value: Any) -> Iterator[Any]:
    """The containers among the arguments of a call, which may hold one another."""
    seen: set[int] = set()
    pending = [value]
    while pending:
        found = pending.pop()
        if isinstance(found, (list, tuple, dict)) and id(found) not in seen:
            seen.add(id(found))
            yield found
            pending.extend(found.values() if isinstance(found, dict) else found)
