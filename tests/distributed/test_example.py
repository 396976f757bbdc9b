"""The example of the README, alone and under torchrun."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.dist
ROOT = Path(__file__).parents[2]


def printed(*launcher: str) -> str:
    command = [sys.executable, *launcher, "-m", "examples.distributed"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_two_ranks_learn_what_one_does():
    alone = printed()
    together = printed("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    losses = re.findall(r"loss (\d\.\d{3})", alone)
    assert len(losses) == 4
    assert re.findall(r"loss (\d\.\d{3})", together) == losses
    assert "(256, 256) of a weight of (256, 256)" in alone
    assert "(128, 256) of a weight of (256, 256)" in together
