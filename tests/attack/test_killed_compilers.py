"""Processes killed while they compile: nothing runs on, nothing is half kept, nothing is left."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchgraph.lower.inductor import job

ROOT = Path(__file__).parents[2]
KILLS = 10

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        job.cpp_compiler() is None or not Path("/proc/self/environ").exists(),
        reason="it looks for processes in /proc, and Inductor needs a C++ compiler",
    ),
]

SCRIPT = """
import torch
from torch import nn, optim
import torchgraph as tg
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
graph = tg.train_step(model, nn.functional.cross_entropy, optim.AdamW(model.parameters()))
graph.config.set_backend("inductor")
x, y = torch.randn(5, 6), torch.randint(3, (5,))
graph(x, y), graph(x, y)
print("compiles", flush=True)
graph(x, y)
print(graph.report().backend)
"""


def started(cache: Path) -> subprocess.Popen[str]:
    variables = {**os.environ, "TORCHGRAPH_CACHE_DIR": str(cache)}  # noqa: TID251 - for a child
    return subprocess.Popen(
        [sys.executable, "-W", "error::UserWarning", "-c", SCRIPT],
        cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def processes_of(cache: Path) -> Iterator[int]:
    """Those that were started with this cache, whoever started them."""
    wanted = f"TORCHGRAPH_CACHE_DIR={cache}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)
        except OSError:
            continue


@pytest.mark.parametrize("seed", range(6))
def test_ten_kills(seed: int, tmp_path: Path) -> None:
    draws = random.Random(seed)
    for _ in range(KILLS):
        with started(tmp_path) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "compiles\n"
            time.sleep(draws.uniform(0, 8))
            process.kill()
        end = time.monotonic() + 10
        while (left := list(processes_of(tmp_path))) and time.monotonic() < end:
            time.sleep(0.05)
        assert left == []
    with started(tmp_path) as process:
        said, error = process.communicate()
    assert said == "compiles\ninductor\n", error
    assert not list(tmp_path.glob("torchgraph-scratch-*"))
