"""300 steps in float16 whose scale overflows, backs off and grows back; killed, and resumed."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn, optim

from tests.features import overflow_run
from tests.features.scaling import found_inf

ROOT = Path(__file__).parents[2]
STEPS = 300


def start(folder: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.features.overflow_run", str(folder), str(STEPS)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)


def eager() -> list[str]:
    """The same run without a Graph."""
    model = overflow_run.model()
    optimizer, scaler = overflow_run.optimizer(model), overflow_run.scaler()
    scheduler = optim.lr_scheduler.StepLR(optimizer, 50, gamma=0.7)
    torch.manual_seed(1)
    lines = []
    for step in range(STEPS):
        x, y = overflow_run.batch(step)
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        stepped = not found_inf(scaler, optimizer)
        scaler.update()
        optimizer.zero_grad()
        if stepped:
            scheduler.step()
        lines.append(overflow_run.line(loss.detach(), scaler.get_scale()))
    return lines


def test_a_killed_run_goes_on_to_the_last_bit(tmp_path):
    log = tmp_path / "log"
    killed_at = random.randint(overflow_run.EVERY + 1, STEPS - 20)
    process = start(tmp_path)
    while process.poll() is None:
        if log.exists() and log.read_bytes().count(b"\n") >= killed_at:
            process.kill()
        time.sleep(0.001)
    assert process.wait() == -signal.SIGKILL
    reached = log.read_bytes().count(b"\n")
    assert killed_at <= reached < STEPS
    assert start(tmp_path).wait() == 0

    expected = eager()
    assert log.read_text().splitlines(keepends=True) == expected
    scales = [float.fromhex(line.split()[1]) for line in expected]
    pairs = list(zip([2.0**26, *scales], scales, strict=False))
    assert sum(new < old for old, new in pairs) >= 10, "it backs off"
    assert sum(new > old for old, new in pairs) >= 10, "it grows back"
