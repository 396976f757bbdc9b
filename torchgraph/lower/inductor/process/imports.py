"""What a compiling process may import: what this one did, and nothing that others can replace."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from ..cache.private import nobody_else_writes

_PACKAGES = ("torch", "torchgraph")


def packages() -> dict[str, Path]:
    """The folders of torch and torchgraph, as this process imported them."""
    ours = Path(__file__).parents[3]
    return dict(zip(_PACKAGES, (Path(torch.__file__).parent, ours), strict=True))


def search_path() -> list[str]:
    """The entries of ``sys.path`` that another process of this user may search for the rest.

    The current directory and the script's are left out: a compiler needs nothing of theirs, and
    they may lie where everybody writes. So is every other entry that another user can write, but
    the one with torch, where whoever can write could replace torch itself.
    """
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    left_out = {os.getcwd(), os.path.dirname(os.path.abspath(script or "."))}
    left_out = {os.path.realpath(path) for path in left_out}
    of_torch = Path(torch.__file__).parents[1].resolve()
    found = {entry: Path(entry).resolve() for entry in sys.path if os.path.isabs(entry)}
    allowed = (
        path
        for path in found.values()
        if path == of_torch or (str(path) not in left_out and nobody_else_writes(path))
    )
    return list(map(str, dict.fromkeys(allowed)))  # not by a link, which may lead elsewhere later
