"""Scripts are run by ``python -m torchgraph.oneflow`` in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(
    script: Path | str, *arguments: str, cwd: Path, timeout: float = 120, **environment: str
) -> str:
    """What a script prints; AssertionError with what it said when it fails."""
    command = [sys.executable, "-W", "error", "-m", "torchgraph.oneflow", "--cpu"]
    done = subprocess.run(
        [*command, str(script), *arguments],
        cwd=cwd,
        env={
            "PATH": "",
            "HOME": str(cwd),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TORCHGRAPH_BACKEND": "aten",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{script}:\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout
