"""The command line: ``torchgraph doctor``, ``show``, ``cache``, ``port``.

Touches: the terminal; the disk cache, where somebody says so.
Never: an algorithm that has a room of its own.
"""

from __future__ import annotations

from .installed import is_replaced

try:
    from .commands import main
except ImportError:
    if not is_replaced():
        raise
    from .installed import main

__all__ = ["main"]
