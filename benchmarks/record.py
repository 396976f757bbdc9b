"""Results as JSON, with the machine and the versions that gave them."""

from __future__ import annotations

import json
import os
import platform
import re
import time
from pathlib import Path
from typing import Any

import torch

import torchgraph

RESULTS = Path(__file__).parent / "results"


def result(benchmark: str, device: torch.device, **settings: Any) -> dict[str, Any]:
    """What each result begins with: when, where and how it was measured."""
    return {
        "benchmark": benchmark,
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "device": device.type,
        **surroundings(device),
        "settings": settings,
    }


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


def save(record: dict[str, Any], directory: Path, *name: str) -> Path:
    """Write ``<name>-<name>.json``, whole or not at all; a new result takes the old one's place."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = "-".join(re.sub(r"\W+", "_", part) for part in name if part)
    path = directory / f"{stem}.json"
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)
    return path
