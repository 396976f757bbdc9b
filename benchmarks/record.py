"""Results as JSON, with the machine and the versions that gave them."""

from __future__ import annotations

import datetime
import json
import os
import platform
from pathlib import Path
from typing import Any

import torch

import torchgraph

RESULTS = Path(__file__).parent / "results"


def surroundings(device: torch.device) -> dict[str, Any]:
    """Machine and versions."""
    machine: dict[str, Any] = {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }
    if device.type == "cuda":
        machine["gpu"] = torch.cuda.get_device_name(device)
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "torchgraph": torchgraph.__version__,
    }
    return {"machine": machine, "versions": versions}


def cpu_name() -> str:
    """The model name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def heading(record: dict[str, Any]) -> str:
    """One line about machine and versions."""
    machine, versions = record["machine"], record["versions"]
    where = machine.get("gpu") or machine["cpu"]
    return (
        f"{where}, {machine['cores']} cores, {machine['threads']} threads, load "
        f"{machine['load'] or 0:.1f}; torch {versions['torch']}, python {versions['python']}"
    )


def save(record: dict[str, Any], directory: Path, name: str) -> Path:
    """Write ``<name>-<date>.json``, whole or not at all, beside what is already there."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-{datetime.date.today().isoformat()}"
    path, number = directory / f"{stem}.json", 1
    while path.exists():
        number += 1
        path = directory / f"{stem}-{number}.json"
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)
    return path
