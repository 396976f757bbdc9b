"""torch's functional collectives, by the names of process groups; each is waited for."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch


def all_reduce(tensor: torch.Tensor, op: str, group: str) -> torch.Tensor:
    """``"sum"``, ``"max"`` ... of those of all ranks."""
    found: torch.Tensor = _ops().wait_tensor(_ops().all_reduce(tensor, op, group))
    return found


@functools.cache
def _ops() -> Any:
    """With their fake kernels, which no import of torch loads."""
    importlib.import_module("torch.distributed._functional_collectives")
    return torch.ops._c10d_functional
