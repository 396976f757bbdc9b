"""Logs of failed compilations: all that the compiler said, kept beside the cache."""

from __future__ import annotations

import os
import re
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_FOLDER = "logs"
_NAME = re.compile(r"\d{4}-\d\d-\d\d-\d{6}-\w{8}\.log", re.ASCII)
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
    kept = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    for old in sorted(kept)[:-_KEPT]:
        with suppress(OSError):  # another process was faster
            old.unlink()
    return f"All that was said: {path}"
