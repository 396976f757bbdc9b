"""The compiled libraries: where they are, and loading them once, when they are first needed."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

_HERE = Path(__file__).parent
_NAMES = {"cpu": "_C.abi3.so", "cuda": "_C_cuda.abi3.so", "guards": "_guards.abi3.so"}
_loaded: list[str] = []
_hooks: list[Callable[[], None]] = []


def path(part: str) -> Path | None:
    """The ops of ``"cpu"`` or ``"cuda"``, or the ``"guards"``; None when it was not compiled."""
    found = _HERE / _NAMES[part]
    return found if found.exists() else None


@functools.cache
def load(device: str = "cpu") -> bool:
    """Load the compiled ops of a device; False when there are none, and references run instead.

    Raises OSError when a library is there and cannot be loaded.
    """
    library = path(device)
    if library is None:
        return False
    # What the libraries say about themselves is in the first one.
    if device == "cuda" and (torch.version.cuda is None or not load("cpu")):
        return False
    torch.ops.load_library(library)
    _loaded.append(device)
    while _hooks:
        _hooks.pop()()
    return True


@functools.cache
def guards() -> ModuleType | None:
    """The compiled guards; None when they were not compiled, and Python compares instead.

    Raises ImportError when they are there and cannot be loaded.
    """
    if path("guards") is None:
        return None
    return importlib.import_module("torchgraph._guards")


def when_loaded(hook: Callable[[], None]) -> None:
    """Call it when compiled ops are there: now, or after the first library has been loaded."""
    if _loaded:
        hook()
    else:
        _hooks.append(hook)


def version() -> int:
    """The version of the compiled CPU kernels, raised with what they compute or take; 0: none."""
    return int(torch.ops.torchgraph.compiled_version()) if load() else 0
