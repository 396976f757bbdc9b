"""Directories with spaces, quotes, ``$``, umlauts: Inductor quotes few paths, so it sees none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.lower.test_inductor import ODD
from torchgraph.lower.inductor import job

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    job.cpp_compiler() is None, reason="Inductor needs a C++ compiler, and there is none here"
)

SCRIPT = """
import sys
packages, root = sys.argv[1:]
sys.path[:0] = [packages, root]
import torch
from torch import nn, optim
import torchgraph as tg
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
graph = tg.train_step(model, nn.functional.cross_entropy, optim.AdamW(model.parameters()))
graph.config.set_backend("inductor")
x, y = torch.randn(5, 6), torch.randint(3, (5,))
for _ in range(4): graph(x, y)
print(torch.__file__)
print(graph.report().backend)
"""


@pytest.mark.slow
def test_it_compiles_where_torch_and_torchgraph_lie_in_one(tmp_path: Path) -> None:
    """That the cache does is so in all of ``tests/lower/test_inductor.py``."""
    odd = tmp_path / ODD
    odd.mkdir()
    packages, root = odd / "packages", odd / "root"
    packages.symlink_to(Path(torch.__file__).parents[1])
    root.symlink_to(ROOT)
    variables = {**os.environ, "TORCHGRAPH_CACHE_DIR": str(odd / "cache")}  # noqa: TID251 - for a child
    ran = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", SCRIPT, str(packages), str(root)],
        cwd=odd, env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found, backend = ran.stdout.splitlines()
    assert ODD in found
    assert backend == "inductor"
    assert not list((odd / "cache").glob("torchgraph-scratch-*"))
