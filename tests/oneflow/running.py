"""Scripts are run by ``python -m torchgraph.oneflow`` in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(
    script: Path | str,
    *arguments: str,
    cwd: Path,
    imports: Path | None = None,
    timeout: float = 120,
) -> str:
    """What a script prints; AssertionError with what it said when it fails.

    Args:
        cwd: where it runs, and what it writes goes to.
        imports: a folder of modules besides.
    """
    command = [sys.executable, "-m", "torchgraph.oneflow", "--cpu"]
    done = subprocess.run(
        [*command, str(script), *arguments],
        cwd=cwd,
        env={
            "PATH": "",
            "HOME": str(cwd),
            "PYTHONPATH": os.pathsep.join(map(str, filter(None, (ROOT, imports)))),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TORCHGRAPH_BACKEND": "aten",
        },
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{script}:\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout
