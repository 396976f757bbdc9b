"""Entries of the disk cache that say so when they are run, and what attackers do to them."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

from torchgraph.lower import DiskCache

CODE = "kernel/code.py"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play other users")


def plant(cache: DiskCache, key: str, marker: Path) -> Path:
    """Keep an entry that writes ``marker`` when it is run."""
    made = cache.begin()
    (made / "kernel").mkdir()
    (made / CODE).write_text(f"open({str(marker)!r}, 'w').close()\n")
    (made / "options.json").write_text("{}")
    return cache.keep(made, key)


def run(cache: DiskCache, key: str) -> tuple[bool, list[str]]:
    """Find and run an entry as a Graph would; whether there was one, and the warnings."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        entry = cache.find(key)
    if entry is not None:
        for file in sorted(entry.rglob("*.py")):
            exec(file.read_text(), {})
    return entry is not None, [str(one.message) for one in seen]
