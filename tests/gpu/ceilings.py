"""First: the machine, and what nothing on it can be faster than.

    python -m tests.gpu.ceilings [--dry]

Bytes are those read and those written. A launch is one kernel over one element: in eager, and as a
node of a CUDA Graph; the two say what replaying can win where launches dominate.
"""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch

import torchgraph
from torchgraph import _extension

from . import job
from .machine import Machine, machine

TRIES = 10
NODES = 200
"""Kernels of the CUDA Graph whose replay is timed."""
PACKAGES = ("triton", "transformers", "timm", "pytest", "rich", "numpy")


def main() -> None:
    """Rows: ``machine``, ``libraries``, ``copy``, a product for each precision, ``launch``."""
    args = job.arguments(__doc__)
    torch.manual_seed(args.seed)
    with machine(dry=args.dry) as found:
        for name, find in (
            ("machine", _machine),
            ("libraries", _libraries),
            ("copy", _copy),
            ("product bfloat16", _product(torch.bfloat16, "highest")),
            ("product float32", _product(torch.float32, "highest")),
            ("product TF32", _product(torch.float32, "high")),
            ("launch", _launch),
        ):
            with job.case(name):
                job.row(name, **find(found))


def _machine(on: Machine) -> dict[str, Any]:
    if on.dry:
        return {"gpu": "none", "torch": torch.__version__, "python": platform.python_version()}
    properties = torch.cuda.get_device_properties(on.device)
    return {
        "gpu": properties.name,
        "gpu_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "capability": ".".join(map(str, torch.cuda.get_device_capability(on.device))),
        "driver": _driver(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in PACKAGES if importlib.util.find_spec(name)},
    }


def _driver() -> str:
    """The driver's version, as its kernel module tells it."""
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            words = file.readline().split()
    except OSError:
        return "unknown"
    return next((word for word in words if word.count(".") >= 1 and word[0].isdigit()), "unknown")


def _libraries(on: Machine) -> dict[str, Any]:
    parts = {part: _extension.load(part) for part in ("cpu", "cuda")}
    parts["guards"] = _extension.guards() is not None
    missing = [part for part, loaded in parts.items() if not loaded]
    if missing and not (on.dry and missing == ["cuda"]):
        reasons = "; ".join(f"{part}: {_extension.failure(part)}" for part in missing)
        raise RuntimeError(f"not loaded: {reasons}")
    return {"torchgraph": torchgraph.__version__, "kernels": _extension.version()}


def _best(on: Machine, call: Callable[[], Any], times: int = 1) -> float:
    clock = on.clock()
    for _ in range(3):
        call()
    return min(clock.seconds(call, times) / times for _ in range(TRIES))


def _copy(on: Machine) -> dict[str, Any]:
    count = 1 << (16 if on.dry else 29)  # 2 GiB each, many times the L2 cache
    source = torch.randn(count, device=on.device)
    target = torch.empty_like(source)
    return {"bytes_per_second": 8 * count / _best(on, lambda: target.copy_(source))}


def _product(dtype: torch.dtype, precision: str) -> Callable[[Machine], dict[str, Any]]:
    def find(on: Machine) -> dict[str, Any]:
        size = 64 if on.dry else 8192
        a, b = (torch.randn(size, size, device=on.device).to(dtype) for _ in range(2))
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision)
        try:
            return {"flops_per_second": 2 * size**3 / _best(on, lambda: a @ b)}
        finally:
            torch.set_float32_matmul_precision(before)

    return find


def _launch(on: Machine) -> dict[str, Any]:
    x = torch.zeros(1, device=on.device)

    def kernels() -> None:
        for _ in range(NODES):
            x.add_(1.0)

    eager = _best(on, kernels) / NODES
    if on.dry:
        return {"eager_seconds": eager, "node_seconds": eager}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels()
    replay = _best(on, graph.replay)
    before = x.item()
    graph.replay()
    added = x.item() - before
    wrong = f"a replay of {NODES} additions added {added}"
    outcome = "ok" if added == NODES else wrong
    return {"outcome": outcome, "eager_seconds": eager, "node_seconds": replay / NODES}


if __name__ == "__main__":
    main()
