"""A process that is killed while it saves leaves a whole file: the one before, or the new one."""

import itertools
import os
import random
import signal
import time

import pytest
import torch

import torchgraph as tg
from torchgraph.artifact import files
from torchgraph.artifact.files import PREFIX, replaced

SIZE = 200_000


def saves(first, path):
    for number in itertools.count(first):
        tg.save({"number": number, "x": torch.full((SIZE,), float(number))}, path)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("kills", [15, pytest.param(60, marks=pytest.mark.slow)])
def test_a_killed_save_leaves_a_whole_file(kills, tmp_path):
    chance = random.Random(kills)
    path = tmp_path / "state"
    tg.save({"number": -1, "x": torch.full((SIZE,), -1.0)}, path)
    last, left = -1, 0
    for _ in range(kills):
        child = os.fork()
        if not child:
            saves(last + 1, path)
        time.sleep(chance.uniform(0.0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        state = tg.load(path)
        assert state["number"] >= last
        assert bool((state["x"] == state["number"]).all())
        last = state["number"]
        left += len(os.listdir(tmp_path)) - 1
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


def test_a_save_waits_for_no_file_of_others_and_removes_none(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(files, "_clear", lambda folder, start: seen.append(start))
    tg.save({}, tmp_path / "state")
    monkeypatch.undo()
    start = seen[0]
    os.mkfifo(tmp_path / f"{start}1-00000000")
    (tmp_path / f"{start}notes").write_text("mine")
    (tmp_path / "outside").write_text("mine")
    (tmp_path / f"{start}2-00000000").symlink_to(tmp_path / "outside")
    (tmp_path / f"{start}3-00000000").write_text("left by a killed save")
    tg.save({}, tmp_path / "state")
    left = {path.name.removeprefix(start) for path in tmp_path.iterdir()}
    assert left == {"1-00000000", "notes", "2-00000000", "outside", "state"}
