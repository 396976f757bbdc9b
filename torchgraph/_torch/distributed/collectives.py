"""Functional collectives by the name of a process group, and helpers that DDP itself calls."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

_dist: Any = torch.distributed  # its types leave out what begins with an underscore
_BROADCAST_BYTES = 250 * 1024 * 1024
"""How much DDP broadcasts at a time."""


@functools.cache
def ops() -> Any:
    """Torch's functional collectives, with their fake kernels, which no import of torch loads."""
    importlib.import_module("torch.distributed._functional_collectives")
    return torch.ops._c10d_functional


def wait(tensor: torch.Tensor) -> torch.Tensor:
    """The result of a collective that was begun: the same memory, which may be read from here."""
    found: torch.Tensor = ops().wait_tensor(tensor)
    return found


def begin_sum(tensor: torch.Tensor, group: str) -> torch.Tensor:
    """Begin to add up ``tensor`` over the ranks of a group; `wait` is to follow."""
    found: torch.Tensor = ops().all_reduce(tensor, "sum", group)
    return found


def begin_broadcast(tensor: torch.Tensor, source: int, group: str) -> torch.Tensor:
    """Begin to hand out that of the rank ``source``, which counts within the group; then `wait`."""
    found: torch.Tensor = ops().broadcast(tensor, source, group)
    return found


def gathered(tensor: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
    """Those of all ranks one after the other: ``(n, ...)`` becomes ``(ranks * n, ...)``."""
    return wait(ops().all_gather_into_tensor(tensor, ranks, group))


def scattered_sum(tensor: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
    """The sum over all ranks of the own row of ``(ranks, n)``: ``(1, n)``."""
    return wait(ops().reduce_scatter_tensor(tensor, "sum", ranks, group))


def reduced(tensor: torch.Tensor, op: str, group: str) -> torch.Tensor:
    """``"sum"``, ``"max"`` ... of those of all ranks."""
    return wait(ops().all_reduce(tensor, op, group))


def buckets(tensors: Sequence[torch.Tensor], limits: Sequence[int]) -> list[list[int]]:
    """Positions of tensors that travel together, as DDP groups them; ``limits``: bytes.

    The first bucket of a dtype is of the first limit, each later one of the next, or the last.
    """
    found: list[list[int]] = _dist._compute_bucket_assignment_by_size(list(tensors), list(limits))[
        0
    ]
    return found


def send_all(tensors: Sequence[torch.Tensor], group: str) -> None:
    """Write the first rank's values into those of all ranks of a group."""
    of = group_of(group)
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_device.setdefault(tensor.device, []).append(tensor)
    for held in by_device.values():
        _dist._broadcast_coalesced(of, held, _BROADCAST_BYTES, 0)


def group_of(name: str) -> Any:
    """The process group of that name; RuntimeError for none."""
    return _dist.distributed_c10d._resolve_process_group(name)


def store_of(name: str, seconds: float) -> Any:
    """Where the ranks of the process leave notes for each other, below ``name``."""
    store = _dist.PrefixStore(name, _dist.distributed_c10d._get_default_store())
    store.set_timeout(timedelta(seconds=seconds))
    return store
