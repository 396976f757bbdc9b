"""How near our kernels come to the memory's speed; of the three farthest from it, their counters.

    python -m tests.gpu.kernels all [--dry]
    ncu python -m tests.gpu.kernels adam

The least bytes are each input read once and each output written once. Inputs are larger than the L2
cache, and drawn at random.
"""

from __future__ import annotations

import csv
import io
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from torchgraph import ops
from torchgraph.passes.fusions.bce_mean import op as bce
from torchgraph.passes.fusions.cross_entropy import op as cross_entropy
from torchgraph.passes.fusions.model_update import op as update

from . import job
from .machine import Machine, machine

ROOT = Path(__file__).parents[2]
SLOWEST = 3
REPEATS = 7
CALLS_AT_ONCE = 10
"""Timed together: the host prepares a call while the GPU works on the one before."""
NCU_SECONDS = 90
METRICS = {
    "dram_share": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "compute_share": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
    "nanoseconds": "gpu__time_duration.sum",
}
NUMBERS = {"lr": 1e-3, "weight_decay": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}


@dataclass(frozen=True)
class Call:
    """A call of an op, and the least bytes that it moves."""

    run: Callable[[], Any]
    least: int


Make = Callable[[Machine], Call]


def main() -> None:
    """A row for each op; behind them one for each of the slowest, as ncu sees its kernel."""
    args = job.arguments(__doc__, "which", which=("all", *CALLS))
    torch.manual_seed(args.seed)
    with machine(dry=args.dry) as on:
        if args.which != "all":
            CALLS[args.which](on).run()
            on.wait()
            return
        rate = _copy_rate(on)
        shares: dict[str, float] = {}
        for name, make in CALLS.items():
            with job.case(name):
                shares[name] = _timed(name, make(on), rate, on)
    slowest = sorted(shares, key=lambda name: shares[name])[:SLOWEST]
    for name in slowest:
        with job.case(f"{name}, ncu"):
            job.row(f"{name}, ncu", **_counters(name, dry=args.dry))


def _timed(name: str, call: Call, rate: float, on: Machine) -> float:
    """A row; the share of the copy's speed that the call reaches."""
    clock = on.clock()
    for _ in range(3):
        call.run()
    taken = [clock.seconds(call.run, CALLS_AT_ONCE) / CALLS_AT_ONCE for _ in range(REPEATS)]
    median = statistics.median(taken)
    share = call.least / rate / median
    job.row(name, seconds=median, least_bytes=call.least, share_of_copy=share)
    return share


def _copy_rate(on: Machine) -> float:
    source = torch.randn(_size(on), device=on.device)
    target = torch.empty_like(source)
    clock = on.clock()
    copy = partial(target.copy_, source)
    seconds = [clock.seconds(copy, CALLS_AT_ONCE) / CALLS_AT_ONCE for _ in range(5)]
    return 8 * source.numel() / min(seconds)


def _size(on: Machine) -> int:
    return 1 << (12 if on.dry else 27)  # 512 MiB of float32


def _adam(on: Machine) -> Call:
    params, grads, first, second = (_parts(on) for _ in range(4))
    second = [t.abs() for t in second]
    steps = [torch.tensor(5.0) for _ in params]
    lists: tuple[list[torch.Tensor], ...] = (params, grads, first, second, [], steps, [])
    op = update.writing("adam")
    run = partial(op, *lists, **NUMBERS, decoupled=True)
    return Call(run, 7 * 4 * sum(t.numel() for t in params))


def _lamb(on: Machine) -> Call:
    params, grads, first, second = (_parts(on) for _ in range(4))
    second = [t.abs() for t in second]
    steps = [torch.tensor(5.0) for _ in params]
    lists: tuple[list[torch.Tensor], ...] = (params, grads, first, second, steps, [])
    op = update.writing("lamb")
    run = partial(op, *lists, **NUMBERS)
    return Call(run, 7 * 4 * sum(t.numel() for t in params))


def _sgd(on: Machine) -> Call:
    params, grads, momenta = (_parts(on) for _ in range(3))
    op = update.writing("sgd")
    numbers = {"lr": 0.1, "weight_decay": 0.01, "momentum": 0.9, "dampening": 0.0}
    run = partial(op, params, grads, momenta, [], **numbers)
    return Call(run, 5 * 4 * sum(t.numel() for t in params))


def _parts(on: Machine) -> list[torch.Tensor]:
    """Sizes as in a model: a few large tensors and many small ones."""
    large = _size(on) // 16
    sizes = [large] * 4 + [large // 64] * 64 + [1024] * 128
    return [torch.randn(size, device=on.device) for size in sizes]


def _logits(on: Machine) -> tuple[torch.Tensor, torch.Tensor]:
    rows, classes = (4, 97) if on.dry else (8192, 50257)
    logits = torch.randn(rows, classes, device=on.device).bfloat16()
    return logits, torch.randint(classes, (rows,), device=on.device)


def _cross_entropy(on: Machine) -> Call:
    logits, target = _logits(on)
    return Call(partial(cross_entropy.forward, logits, target), 2 * logits.numel())


def _cross_entropy_backward(on: Machine) -> Call:
    logits, target = _logits(on)
    loss, lse, total = cross_entropy.forward(logits, target)
    by = torch.ones_like(loss)
    run = partial(cross_entropy.backward, logits, by, target, lse, total)
    return Call(run, 4 * logits.numel())


def _bce(on: Machine) -> Call:
    logits, target = (torch.randn(_size(on), device=on.device) for _ in range(2))
    return Call(partial(bce.forward, logits, target), 8 * logits.numel())


def _bce_backward(on: Machine) -> Call:
    logits, target = (torch.randn(_size(on), device=on.device) for _ in range(2))
    by = torch.ones((), device=on.device)
    return Call(partial(bce.backward, by, logits, target), 12 * logits.numel())


def _cast_scale(on: Machine) -> Call:
    x = torch.randn(_size(on), device=on.device).bfloat16()
    by = torch.rand((), device=on.device)
    return Call(partial(ops.cast_scale, x, by, 0.5, dtype=torch.float32), 6 * x.numel())


CALLS: dict[str, Make] = {
    "adam": _adam,
    "lamb": _lamb,
    "sgd": _sgd,
    "cross_entropy": _cross_entropy,
    "cross_entropy_backward": _cross_entropy_backward,
    "bce": _bce,
    "bce_backward": _bce_backward,
    "cast_scale": _cast_scale,
}


def _counters(name: str, *, dry: bool) -> dict[str, Any]:
    """The metrics of the longest kernel of ours in a call. Clocks are left as they are."""
    command = [sys.executable, "-m", "tests.gpu.kernels", name, *(["--dry"] if dry else [])]
    if not dry:
        ncu = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
        which = ["--kernel-name-base", "demangled", "--kernel-name", "regex:torchgraph::"]
        metrics = ["--metrics", ",".join(METRICS.values()), "--csv", "--page", "raw"]
        how = ["--clock-control", "none", "--print-units", "base"]
        command = [ncu, *how, *which, *metrics, *command]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=NCU_SECONDS)
    if done.returncode:
        said = [line for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
        raise RuntimeError(f"ncu ended with {done.returncode}: {' '.join(said[-2:])}")
    return longest(done.stdout) if not dry else {"kernel": "none"}


def longest(printed: str) -> dict[str, Any]:
    """Of ncu's raw page as CSV, the kernel that took longest."""
    lines = [line for line in printed.splitlines() if line.startswith('"')]
    units, *kernels = csv.DictReader(io.StringIO("\n".join(lines)))
    if not kernels:
        raise RuntimeError("ncu has seen no kernel of ours")
    columns = {short: _column(units, metric) for short, metric in METRICS.items()}
    last = max(kernels, key=lambda row: _number(row[columns["nanoseconds"]]))
    values = {short: _number(last[column]) for short, column in columns.items()}
    return {"kernel": last["Kernel Name"][:120], "launches": len(kernels), **values}


def _column(units: dict[str, str], metric: str) -> str:
    return next(name for name in units if name.startswith(metric))


def _number(text: str) -> float:
    return float(text.replace(",", ""))


if __name__ == "__main__":
    main()
