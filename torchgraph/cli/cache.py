"""``torchgraph cache``: the compiled code that is kept on disk."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..debug.units import size
from ..environment import bytes_of, cache_directory, cache_limit
from ..lower.inductor.cache.entries import Entry, entries, shrink
from ..lower.inductor.cache.private import unwritable_by_others


def show(console: Console) -> int:
    """Print each entry: its size, its age, when it was used, by which torch."""
    root, found = kept()
    limit, now = cache_limit(), time.time()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("entry", "size", "made", "used", "torch", ""):
        table.add_column(column, justify="left" if column in ("entry", "torch") else "right")
    for entry in found:
        times = (f"{_ago(now - entry.made)} ago", f"{_ago(now - entry.used)} ago")
        whose = "" if entry.is_ours else "not yours"
        name = Text(entry.path.name[:12])
        table.add_row(name, size(entry.size), *times, Text(entry.torch or "?"), whose)
    if found:
        console.print(table)
    console.print(Text(summary(root, found, limit)))
    return 0


def prune(console: Console, to: str | None) -> int:
    """Remove what was not used for the longest time, until no more than ``to`` is left."""
    limit = cache_limit() if to is None else bytes_of(to, "--to")
    return _shrink(console, limit)


def clear(console: Console, *, unasked: bool) -> int:
    """Remove everything that no process uses now."""
    root, found = kept()
    if found and not unasked:
        if not sys.stdin.isatty():
            console.print(Text("Nothing was removed: say --yes where nobody can be asked.", "red"))
            return 2
        console.print(Text(summary(root, found, cache_limit())))
        if console.input("Remove them? \\[y/N] ").strip().lower() not in ("y", "yes"):
            return 1
    return _shrink(console, -1)


def _shrink(console: Console, limit: int) -> int:
    root, found = kept()
    gone = shrink(root, limit) if root is not None else []
    took = size(sum(entry.size for entry in gone))
    console.print(f"{_count(len(gone))} removed, {took}.")
    left = [entry for entry in found if entry not in gone]
    console.print(Text(summary(root, left, cache_limit())))
    return 0


def kept() -> tuple[Path | None, list[Entry]]:
    """The disk cache and its entries; makes no directory. Raises NotPrivate, OSError."""
    root = cache_directory()
    if root is None or not os.path.lexists(root):
        return root, []
    root = unwritable_by_others(root)
    return root, entries(root)


def summary(root: Path | None, found: Sequence[Entry], limit: int) -> str:
    """The size of the cache and its directory."""
    took = size(sum(entry.size for entry in found))
    return f"{_count(len(found))}, {took} of {size(limit)}, in {root or 'no home directory'}"


def _count(number: int) -> str:
    return "1 entry" if number == 1 else f"{number:,} entries"


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
