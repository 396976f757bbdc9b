"""A process that is killed while it saves leaves a whole file: the one before, or the new one."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import torchgraph as tg
from torchgraph.artifact.files import PREFIX, replaced

SIZE = 200_000
# A saver is forked for each kill: it starts in no time.
SAVERS = f"""
import os, sys, torch, torchgraph as tg
torch.set_num_threads(1)
print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        number = int(line)
        while True:
            tg.save({{"number": number, "x": torch.full(({SIZE},), float(number))}}, sys.argv[1])
            number += 1
    print(child, flush=True)
    sys.stdin.readline()
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize("kills", [15, pytest.param(60, marks=pytest.mark.slow)])
def test_a_killed_save_leaves_a_whole_file(kills, tmp_path):
    chance = random.Random(kills)
    path = tmp_path / "state"
    process = subprocess.Popen(
        [sys.executable, "-c", SAVERS, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout.readline() == "ready\n"
    tg.save({"number": -1, "x": torch.full((SIZE,), -1.0)}, path)
    last, left = -1, 0
    for _ in range(kills):
        process.stdin.write(f"{last + 1}\n")
        process.stdin.flush()
        child = int(process.stdout.readline())
        time.sleep(chance.uniform(0.0, 0.03))
        os.kill(child, signal.SIGKILL)
        process.stdin.write("\n")
        process.stdin.flush()
        state = tg.load(path)
        assert state["number"] >= last
        assert bool((state["x"] == state["number"]).all())
        last = state["number"]
        left += len(os.listdir(tmp_path)) - 1
    process.stdin.close()
    assert process.wait(60) == 0
    process.stdout.close()
    assert last > -1
    assert left  # some were killed half-way; the next save removes what they leave
    tg.save(0, path)
    assert os.listdir(tmp_path) == ["state"]


def test_what_is_being_written_is_not_removed(tmp_path):
    with replaced(str(tmp_path / "state")) as file:
        file.write(b"first")
        tg.save(2, tmp_path / "state")
        assert len([name for name in os.listdir(tmp_path) if name.startswith(PREFIX)]) == 1
    assert (tmp_path / "state").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["state"]
