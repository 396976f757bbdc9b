"""Memory for comparisons: bytes that their copies take, bytes that are free, and giving it back."""

from __future__ import annotations

import ctypes
import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch

from ..ir.program import Program, Role

_COPIES = 3
"""To start from, to run on, and to compare compiled code by."""
_LARGE = 1 << 26
"""Bytes of copies after which freed pages are given back."""
_INFO = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


def copied_bytes(program: Program) -> Counter[torch.device]:
    """Bytes that a spot check of a program copies, by device."""
    written = program.signature.written
    needed: Counter[torch.device] = Counter()
    for spec in program.signature.inputs:
        if spec.meta is not None and (spec.fqn in written or spec.role is Role.SLOT):
            needed[spec.meta.device] += _COPIES * spec.meta.nbytes
    return needed


def fits(needed: Mapping[torch.device, int]) -> bool:
    """True where each device has at least the ``needed`` bytes free."""
    return all(size <= free(device) for device, size in needed.items())


def free(device: torch.device) -> int:
    """Bytes that are free on a device, as far as the system says."""
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + reserved
    return min(_available(), _left_to_the_group())


def give_back(copied: int) -> None:
    """Return memory to the system after copies of so many bytes: the C library keeps freed pages.

    After few nothing is done: it takes a look at all of the heap.
    """
    if copied < _LARGE:
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _available() -> int:
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", _INFO.read_text(encoding="ascii"))
    except OSError:  # no Linux
        return sys.maxsize
    return sys.maxsize if found is None else 1024 * int(found[1])


def _left_to_the_group() -> int:
    """Bytes up to the memory limit of the control group that a container runs in."""
    try:
        limit, used = (
            int((_GROUP / name).read_text(encoding="ascii"))
            for name in ("memory.max", "memory.current")
        )
    except (OSError, ValueError):  # none, or no limit
        return sys.maxsize
    return limit - used
