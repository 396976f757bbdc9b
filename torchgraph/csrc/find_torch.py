"""The torch that the compiled parts are built against: where it is and what it says of itself.

It is found without importing it, which takes seconds and may fail for other reasons.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

OLDEST = (2, 11)
_WHERE = "import importlib.util as u; found = u.find_spec('torch'); print(found and found.origin)"


def torch_root() -> Path | None:
    """The folder of a torch with the headers that we need; None when there is none.

    On the path of this process, else in the environment that is installed into, which an isolated
    build does not see.
    """
    return next((root for root in (_of_this_process(), _of_the_target()) if _serves(root)), None)


def facts(root: Path) -> dict[str, object]:
    """The constants of ``torch/version.py``: ``__version__``, ``cuda`` and others."""
    found: dict[str, object] = {}
    for line in ast.parse((root / "version.py").read_text(encoding="utf-8")).body:
        names = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
        value = getattr(line, "value", None)
        for name in names:
            if isinstance(name, ast.Name) and isinstance(value, ast.Constant):
                found[name.id] = value.value
    return found


def _serves(root: Path | None) -> bool:
    if root is None or not (root / "include" / "torch" / "csrc" / "stable").is_dir():
        return False
    major, minor = str(facts(root)["__version__"]).split(".")[:2]
    return (int(major), int(minor)) >= OLDEST


def _of_this_process() -> Path | None:
    found = importlib.util.find_spec("torch")
    return Path(found.origin).parent if found and found.origin else None


def _of_the_target() -> Path | None:
    """Find torch by an isolated build's Python, which differs from the target's in variables."""
    elsewhere = os.path.dirname(sys.executable)  # `-c` looks where it runs first
    command = [sys.executable, "-E", "-c", _WHERE]
    said = subprocess.run(command, capture_output=True, text=True, cwd=elsewhere).stdout.strip()
    return Path(said).parent if said not in ("", "None") else None
