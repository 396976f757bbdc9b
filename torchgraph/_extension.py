"""The compiled libraries: where they are, and loading them once, when they are first needed.

One that is there and cannot be loaded, because it was made for another machine or torch, is as good
as missing: there is a warning, `torchgraph doctor` says the reason, and references run.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

from .errors import BackendWarning, warn

_HERE = Path(__file__).parent
_NAMES = {"cpu": "_C.abi3.so", "cuda": "_C_cuda.abi3.so", "guards": "_guards.abi3.so"}
_loaded: list[str] = []
_failed: dict[str, str] = {}
_hooks: list[Callable[[], None]] = []


def path(part: str) -> Path | None:
    """The ops of ``"cpu"`` or ``"cuda"``, or the ``"guards"``; None when it was not compiled."""
    found = _HERE / _NAMES[part]
    return found if found.exists() else None


@functools.cache
def load(device: str = "cpu") -> bool:
    """Load the compiled ops of a device; False when there are none, and references run instead."""
    library = path(device)
    if library is None:
        return False
    # What the libraries say about themselves is in the first one.
    if device == "cuda" and (torch.version.cuda is None or not load("cpu")):
        return False
    try:
        _look_at(library)
        torch.ops.load_library(library)
    except (OSError, RuntimeError) as error:  # of the loader, and of torch about a wrong file
        return _not_loaded(device, library, error)
    _loaded.append(device)
    while _hooks:
        _hooks.pop()()
    return True


@functools.cache
def guards() -> ModuleType | None:
    """The compiled guards; None when there are none, and Python compares instead."""
    library = path("guards")
    if library is None:
        return None
    try:
        _look_at(library)
        return importlib.import_module("torchgraph._guards")
    except (ImportError, OSError, SystemError) as error:
        _not_loaded("guards", library, error)
        return None


def failure(part: str) -> str | None:
    """The reason why an existing library failed to load; None where it loaded or was not needed."""
    return _failed.get(part)


def _look_at(library: Path) -> None:
    """Raise OSError for a truncated library: the loader would map missing pages and crash."""
    with library.open("rb") as file:
        header = file.read(64)
    if not header.startswith(b"\x7fELF"):
        return  # another system's, or nothing that its loader would take
    entry, entries = (int.from_bytes(header[at : at + 2], "little") for at in (58, 60))
    end = int.from_bytes(header[40:48], "little") + entry * entries  # its last table ends it
    if library.stat().st_size < max(end, 64):
        raise OSError("the file is cut off")


def _not_loaded(part: str, library: Path, error: Exception) -> bool:
    _failed[part] = f"{library} does not load: {error.__cause__ or error}"
    way_out = "Install torchgraph again in this environment: it works without, slower."
    warn(f"{_failed[part]}\n  Fix: {way_out}", BackendWarning)
    return False


def when_loaded(hook: Callable[[], None]) -> None:
    """Call it when compiled ops are there: now, or after the first library has been loaded."""
    if _loaded:
        hook()
    else:
        _hooks.append(hook)


def version() -> int:
    """The version of the compiled CPU kernels, raised with what they compute or take; 0: none."""
    return int(torch.ops.torchgraph.compiled_version()) if load() else 0
