"""Logs of failed compilations: all that the compiler said, kept beside the cache."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_FOLDER = "logs"
_KEPT = 20
"""Logs; the oldest goes first."""


def keep(root: Path, text: str) -> str:
    """Write ``text`` into a log of its own and say where; or say why there is none."""
    folder = root / _FOLDER
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        name = time.strftime("%Y-%m-%d-%H%M%S-")
        handle, path = tempfile.mkstemp(prefix=name, suffix=".log", dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError as error:
        return f"No log of it could be written ({error.strerror})."
    for old in sorted(folder.glob("*.log"))[:-_KEPT]:
        with suppress(OSError):  # another process was faster
            old.unlink()
    return f"All that was said: {path}"
