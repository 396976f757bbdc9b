"""``python -m torchgraph.oneflow --cpu``: a script that says cuda, on a machine without a GPU."""

from __future__ import annotations

from typing import Any

import torch

_is_cuda_the_cpu = False


def read_cuda_as_cpu() -> None:
    """From now on ``cuda`` under OneFlow's names means the CPU, in this process."""
    global _is_cuda_the_cpu
    _is_cuda_the_cpu = True


def is_cuda_the_cpu() -> bool:
    """Whether `read_cuda_as_cpu` was called."""
    return _is_cuda_the_cpu


def meant(device: Any) -> Any:
    """The device that a script means; what is no device comes back as it is."""
    if not _is_cuda_the_cpu:
        return device
    if isinstance(device, torch.device):
        return torch.device("cpu") if device.type == "cuda" else device
    return "cpu" if isinstance(device, str) and device.partition(":")[0] == "cuda" else device


def cuda(index: Any = None) -> Any:
    """The device that ``cuda()`` means."""
    return meant(torch.device("cuda", index) if isinstance(index, int) else index or "cuda")


def device(*args: Any, **kwargs: Any) -> torch.device:
    """OneFlow's ``device("cuda", 0)``, ``device("cuda:0")``."""
    found: torch.device = meant(torch.device(*args, **kwargs))
    return found
