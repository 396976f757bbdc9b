"""Entries of the disk cache that say so when they are run, and what attackers do to them."""

from __future__ import annotations

import hashlib
import json
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


def list_anew(entry: Path) -> None:
    """Write the right plain hash of every file into the manifest."""
    manifest = json.loads((entry / "manifest.json").read_text())
    files = [p for p in entry.rglob("*") if p.is_file() and p.name != "manifest.json"]
    manifest["files"] = {
        str(p.relative_to(entry)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files
    }
    manifest["folders"] = [str(p.relative_to(entry)) for p in entry.rglob("*") if p.is_dir()]
    (entry / "manifest.json").write_text(json.dumps(manifest))
