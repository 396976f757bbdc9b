"""Models of the sizes that people train: `benchmarks.step` on one of them, and peak memory.

    python -m tests.gpu.models time resnet50 bfloat16 backends [--dry]
    python -m tests.gpu.models memory gpt2 bfloat16 memory [--dry]

Contenders come in groups, each in a process: a CUDA Graph keeps the memory that it computes in.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch

from benchmarks import memory, step
from benchmarks.contenders import EAGER, TORCHGRAPH

from . import job
from .launches import MANUAL, OURS
from .machine import MIB

GROUPS = {
    "backends": (EAGER, TORCHGRAPH, "torchgraph aten fused", "torchgraph inductor"),
    "others": (EAGER, "eager fused", "compile fused", "compile reduce-overhead", MANUAL),
    "memory": (EAGER, MANUAL, TORCHGRAPH, "torchgraph inductor"),
}


def main() -> None:
    """One row: seconds or bytes by contender."""
    names = ("what", "case", "precision", "group")
    args = job.arguments(__doc__, *names, what=("time", "memory"), group=tuple(GROUPS))
    case = "mlp" if args.dry else args.case
    with job.case(args.case, precision=args.precision, group=args.group):
        find = _times if args.what == "time" else _peaks
        found = find(case, args.precision, GROUPS[args.group], dry=args.dry)
        job.row(args.case, precision=args.precision, group=args.group, **found)


def _times(case: str, precision: str, group: tuple[str, ...], *, dry: bool) -> dict[str, Any]:
    where = ["--quick"] if dry else ["--device", "cuda", "--rounds", "3", "--no-memory"]
    with tempfile.TemporaryDirectory() as folder:
        given = ["--models", case, "--precision", precision, "--contenders", ",".join(group)]
        (model,) = step.main([*where, *given, "--out", folder])["models"]
    entries = {entry["name"]: entry for entry in model["contenders"]}
    missing = [f"{n}: {why}" for n, why in model["skipped"].items() if n.startswith(OURS)]
    for name, entry in entries.items():
        status = entry["cuda_graph"]
        if status is not None and not status.startswith("captured"):
            missing.append(f"{name}: no CUDA Graph: {status.splitlines()[0]}")
    return {
        "outcome": "; ".join(missing) if missing and not dry else "ok",
        "seconds": {name: entry["seconds_per_step"] for name, entry in entries.items()},
        "ratios": {name: entry["speed_against_eager"] for name, entry in entries.items()},
        "busy": {name: entry["gpu_busy"] for name, entry in entries.items()},
        "first_seconds": {name: entry["first_step_seconds"] for name, entry in entries.items()},
        "floor_seconds": model["floor"]["seconds"],
        "skipped": model["skipped"],
    }


def _peaks(case: str, precision: str, group: tuple[str, ...], *, dry: bool) -> dict[str, Any]:
    device = torch.device("cpu" if dry else "cuda")
    names = group[::2] if dry else group  # without a GPU or a compiler: eager, and aten
    found = {
        name: memory.of_child(case, name, device, threads=1, precision=precision, timeout=120)
        for name in names
    }
    wrong = [f"{name}: {one['error']}" for name, one in found.items() if "error" in one]
    return {
        "outcome": "; ".join(wrong) or "ok",
        "mib": {name: one["bytes"] / MIB for name, one in found.items() if "bytes" in one},
    }


if __name__ == "__main__":
    main()
