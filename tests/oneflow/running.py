"""Scripts are run by ``python -m torchgraph.oneflow`` in a process of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(
    script: Path | str,
    *arguments: str,
    cwd: Path,
    imports: Path | None = None,
    timeout: float = 120,
    on_gpu: bool = False,
) -> str:
    """What a script prints; AssertionError with what it said when it fails.

    Args:
        cwd: where it runs, and what it writes goes to.
        imports: a folder of modules besides.
        on_gpu: where it says cuda, cuda is meant.
    """
    done = subprocess.run(
        _command(script, arguments, on_gpu=on_gpu),
        cwd=cwd,
        env=_environment(cwd, imports),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{script}:\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def run_on_ranks(count: int, script: Path, *, cwd: Path, timeout: float = 120) -> list[str]:
    """What each of several ranks prints, as torchrun would start them."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    ranks = [
        subprocess.Popen(
            _command(script, ()),
            cwd=cwd,
            env={**_environment(cwd, None), **place, "RANK": str(one), "LOCAL_RANK": str(one)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for one in range(count)
    ]
    told = [rank.communicate(timeout=timeout) for rank in ranks]
    for rank, (out, err) in zip(ranks, told, strict=True):
        assert rank.returncode == 0, f"{script}:\n{out[-3000:]}\n{err[-6000:]}"
    return [out for out, _ in told]


def _command(script: Path | str, arguments: Sequence[str], *, on_gpu: bool = False) -> list[str]:
    options = () if on_gpu else ("--cpu",)
    return [sys.executable, "-m", "torchgraph.oneflow", *options, str(script), *arguments]


LOADED_FROM = ("LD_PRELOAD", "LD_LIBRARY_PATH")
"""Variables that say where a GPU's driver is, or what takes its place."""


def _environment(home: Path, imports: Path | None) -> dict[str, str]:
    return {
        **{name: os.environ[name] for name in LOADED_FROM if name in os.environ},
        "PATH": "",
        "HOME": str(home),
        "PYTHONPATH": os.pathsep.join(map(str, filter(None, (ROOT, imports)))),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TORCHGRAPH_BACKEND": "aten",
    }
