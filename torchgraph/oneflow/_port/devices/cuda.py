"""``oneflow.cuda``: torch's, but for scripts whose cuda is the CPU."""

from __future__ import annotations

from typing import Any

import torch

from . import on_cpu


def set_device(device: Any) -> None:
    """OneFlow: ``cuda.set_device``. With ``--cpu`` there is one device."""
    if not on_cpu.is_cuda_the_cpu():
        torch.cuda.set_device(device)


def current_device() -> int:
    """OneFlow: ``cuda.current_device``. With ``--cpu``: 0."""
    return 0 if on_cpu.is_cuda_the_cpu() else torch.cuda.current_device()


def synchronize(device: Any = None) -> None:
    """OneFlow: ``cuda.synchronize``. With ``--cpu`` all is done already."""
    if not on_cpu.is_cuda_the_cpu():
        torch.cuda.synchronize(device)


def wait() -> None:
    """All of the GPU is done. OneFlow: ``_oneflow_internal.eager.Sync``."""
    if torch.cuda.is_available():
        synchronize()
