"""What there is to say about a line that was not, or not only, rewritten."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Item(NamedTuple):
    """A line of a file, and what a person has to know about it."""

    path: Path
    line: int
    """From 1; 0 where the whole file is meant."""
    what: str
    """A name of OneFlow's, or another subject; items of one subject are listed together."""
    why: str
    is_left: bool = True
    """Something is left to do; else it is a note."""
    is_name: bool = False
    """It is a name of OneFlow's that is refused, or that the table lacks."""


def note(path: Path, line: int, what: str, why: str) -> Item:
    """An item for which nothing has to be done."""
    return Item(path, line, what, why, is_left=False)
