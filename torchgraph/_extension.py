"""The compiled libraries: where they are, and loading them once, when they are first needed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import torch

_HERE = Path(__file__).parent
_loaded: list[str] = []
_hooks: list[Callable[[], None]] = []
_NAMES = {"cpu": "_C.abi3.so", "cuda": "_C_cuda.abi3.so"}


def path(device: str) -> Path | None:
    """The library with the ops of ``"cpu"`` or ``"cuda"``; None when it was not compiled."""
    found = _HERE / _NAMES[device]
    return found if found.exists() else None


@functools.cache
def load(device: str = "cpu") -> bool:
    """Load the compiled ops of a device; False when there are none, and references run instead.

    Raises OSError when a library is there and cannot be loaded.
    """
    library = path(device)
    if library is None or (device == "cuda" and torch.version.cuda is None):
        return False
    torch.ops.load_library(library)
    _loaded.append(device)
    while _hooks:
        _hooks.pop()()
    return True


def when_loaded(hook: Callable[[], None]) -> None:
    """Call it when compiled ops are there: now, or after the first library has been loaded."""
    if _loaded:
        hook()
    else:
        _hooks.append(hook)


def version() -> int:
    """Of the compiled CPU kernels: raised when they compute or take something else. 0: none."""
    return int(torch.ops.torchgraph.compiled_version()) if load() else 0
