"""What a step cannot be faster than: its FLOPs and bytes over rates that this machine reaches.

Bytes are those that no program can leave out: each weight is read forward and backward, its
gradient is written, and AdamW reads four numbers of it and writes three. Activations may stay in
caches or be computed again, so they are not counted. FLOPs are those of matrix products,
convolutions and attention, as `torch.utils.flop_counter` counts them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from .timing import Clock
from .work import Work

_BYTES_PER_WEIGHT = 4 * (1 + 1 + 1 + 4 + 3)
_TRIES = 5


def floor(work: Work, device: torch.device) -> dict[str, Any]:
    """``{"flops", "bytes", "flops_per_second", "bytes_per_second", "seconds"}`` of one step."""
    with (
        FlopCounterMode(display=False) as counter,
        torch.autocast(device.type, work.amp or torch.bfloat16, enabled=work.amp is not None),
    ):
        work.loss_fn(work.model(work.x), work.y).backward()
    flops = counter.get_total_flops()
    nbytes = _BYTES_PER_WEIGHT * sum(p.numel() for p in work.model.parameters())
    by_flops, by_bytes = _flop_rate(device, work.amp or torch.float32), _byte_rate(device)
    return {
        "flops": flops,
        "bytes": nbytes,
        "flops_per_second": by_flops,
        "bytes_per_second": by_bytes,
        "seconds": max(flops / by_flops, nbytes / by_bytes),
    }


def busy(step: Callable[[], Any], device: torch.device, steps: int = 5) -> float | None:
    """The share of the time in which the GPU runs a kernel or a copy; None on a CPU."""
    if device.type != "cuda":
        return None
    clock = Clock(device)
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        seconds = clock.seconds(step, steps)
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in found.events() or []
        if event.device_type.name == "CUDA"
        and not event.is_user_annotation  # spans kernels and the gaps between them
    )
    covered, end = 0.0, 0.0
    for start, stop in spans:  # kernels of several streams count once
        covered += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return covered / 1e6 / seconds


@functools.cache
def _flop_rate(device: torch.device, dtype: torch.dtype) -> float:
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":  # cuDNN's convolutions compute in TF32 unless told otherwise
        torch.set_float32_matmul_precision("high")
    try:
        return 2 * size**3 / _best(device, lambda: a @ b)
    finally:
        torch.set_float32_matmul_precision(before)


@functools.cache
def _byte_rate(device: torch.device) -> float:
    count = 1 << (28 if device.type == "cuda" else 25)
    source = torch.randn(count, device=device)
    target = torch.empty_like(source)
    return 8 * count / _best(device, lambda: target.copy_(source))


def _best(device: torch.device, call: Callable[[], Any]) -> float:
    clock = Clock(device)
    clock.seconds(call)
    return min(clock.seconds(call) for _ in range(_TRIES))
