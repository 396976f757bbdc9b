"""A rank is killed: every other one ends with an error that names it, and training goes on later.

The ranks are scripts of their own: a process that pytest has started hides how one ends.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchgraph.distributed.errors import EXIT_CODE

pytestmark = pytest.mark.dist
ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "tests/distributed/trainer.py")
LIMIT = 30.0
"""Seconds after which no rank is left."""


class Ranks:
    """Processes that train together in a folder."""

    def __init__(self, folder: Path, world: int, *args: str) -> None:
        self.folder, self.world = folder, world
        self.processes: list[subprocess.Popen[bytes]] = []
        port = str(_free_port())
        for rank in range(world):
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            place |= {"RANK": str(rank), "WORLD_SIZE": str(world)}
            with open(folder / f"err-{rank}", "ab") as err:
                command = [sys.executable, SCRIPT, str(folder), *args]
                self.processes.append(subprocess.Popen(command, env=_env(**place), stderr=err))

    def wait(self, seconds: float) -> list[int]:
        """How they end."""
        end = time.monotonic() + seconds
        return [process.wait(max(end - time.monotonic(), 0.1)) for process in self.processes]

    def log(self, rank: int) -> list[list[str]]:
        """What a rank has said, a line each, in words."""
        return log(self.folder, rank)

    def until(self, rank: int, lines: int) -> None:
        """Wait until a rank has said so much."""
        _until(lambda: len(self.log(rank)) >= lines)

    def kill(self, rank: int) -> None:
        """As the system does it where there is no memory."""
        os.kill(self.processes[rank].pid, signal.SIGKILL)

    def end(self) -> None:
        """Leave nothing behind."""
        for process in self.processes:
            process.kill()
            process.wait()


def _env(**more: str) -> dict[str, str]:
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **more}
    return {**os.environ, **own}  # noqa: TID251 - for a child


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _until(holds: Callable[[], bool], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "nothing happens"
        time.sleep(0.002)


def log(folder: Path, rank: int) -> list[list[str]]:
    path = folder / f"log-{rank}"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [line.split() for line in lines]


def losses(folder: Path, rank: int) -> dict[str, str]:
    """By number of the step; of what a later start has run again, the later."""
    return {line[1]: line[2] for line in log(folder, rank) if line[0] == "step"}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Ranks]]:
    """Starts ranks in a folder of the test, which end with it."""
    started: list[Ranks] = []

    def start(world: int, *args: str, folder: str = "") -> Ranks:
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        started.append(Ranks(place, world, *args))
        return started[-1]

    yield start
    for one in started:
        one.end()


def kill_one(start: Callable[..., Ranks], folder: str, world: int, dice: random.Random) -> None:
    """Of so many ranks any one dies, in any step or between two."""
    ranks = start(world, "100000", folder=folder)
    victim = dice.randrange(world)
    ranks.until(victim, dice.randrange(2, 60))
    time.sleep(dice.random() * 0.02)
    ranks.kill(victim)
    killed = time.time()
    codes = ranks.wait(LIMIT)
    for rank in set(range(world)) - {victim}:
        kind, error, when, _, *words = ranks.log(rank)[-1]
        assert (kind, error) == ("error", "RankLost"), (rank, ranks.log(rank)[-1])
        assert words[:2] in (["Rank", str(victim)], ["Ranks", *words[1:2]])
        assert str(victim) in words[1].split(",")
        assert codes[rank] == 1
        assert float(when) - killed < LIMIT
        text = (ranks.folder / f"err-{rank}").read_text("utf-8")
        assert "RankLost" in text
        assert f"Rank {victim} is lost: pid {ranks.processes[victim].pid}" in text


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_others_name_a_rank_that_was_killed(start, seed):
    kill_one(start, "", 2, random.Random(seed))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_others_name_a_rank_that_was_killed_twenty_times(start):
    dice = random.Random(20)
    for number in range(20):
        kill_one(start, str(number), 2 + number % 2, dice)


def test_training_goes_on_from_the_last_checkpoint(start, tmp_path):
    whole = start(2, "30", folder="whole")
    assert whole.wait(120) == [0, 0]
    torn = start(2, "30", "--pause", "0.03", folder="torn")
    torn.until(1, 14)
    torn.kill(1)
    assert 0 not in torn.wait(LIMIT)
    again = start(2, "30", folder="torn")
    assert again.wait(120) == [0, 0]
    for rank in range(2):
        assert losses(tmp_path / "torn", rank) == losses(tmp_path / "whole", rank)
        assert len(losses(tmp_path / "whole", rank)) == 30


def test_under_torchrun(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(_free_port()), SCRIPT, str(tmp_path), "100000"]
    with open(tmp_path / "err", "wb") as err:
        process = subprocess.Popen(command, env=_env(), stderr=err)
    try:
        _until(lambda: len(log(tmp_path, 1)) >= 30)
        pid = int(log(tmp_path, 1)[0][1])
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        assert process.wait(LIMIT) == 1
        assert time.monotonic() - killed < LIMIT
    finally:
        process.kill()
        process.wait()
    text = (tmp_path / "err").read_text("utf-8")
    assert re.search(rf"RankLost: Rank 1 is lost: pid {pid} on \S+ has ended", text)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_of_another_host_is_missed(start, victim):
    """Each rank believes to be on a host of its own: they meet in the store, and count signs."""
    ranks = start(3, "100000", "--hosts")
    ranks.until(victim, 20)
    time.sleep(2)  # all have heard of all
    ranks.kill(victim)
    killed = time.time()
    ranks.wait(LIMIT)
    for rank in set(range(3)) - {victim}:
        kind, error, when, hits, *words = ranks.log(rank)[-1]
        assert (kind, error) == ("error", "RankLost"), ranks.log(rank)[-1]
        assert str(victim) in words[1]
        assert int(hits) > 10
        assert float(when) - killed < LIMIT


@pytest.mark.slow
def test_a_wait_that_cannot_be_ended_ends_the_process(start):
    """Rank 0 waits for rank 1, which lives and never comes; rank 2, with which it has no

    connection that breaks, is killed.
    """
    ranks = start(3, "10", "--stuck")
    _until(lambda: all(ranks.log(rank) for rank in range(3)))
    time.sleep(4)  # all are inside of their first call
    ranks.kill(2)
    killed = time.monotonic()
    assert ranks.processes[0].wait(LIMIT) == EXIT_CODE
    assert time.monotonic() - killed > 10
    text = (ranks.folder / "err-0").read_text("utf-8")
    assert "Rank 2 is lost" in text
    assert f"ends (exit {EXIT_CODE})" in text
