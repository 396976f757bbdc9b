"""The command line: ``torchgraph doctor``, ``show``, ``cache``, ``port``.

Touches: the terminal; the disk cache, where somebody says so.
Never: an algorithm that has a room of its own.
"""

from __future__ import annotations

from .commands import main

__all__ = ["main"]
