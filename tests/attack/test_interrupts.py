"""Ctrl-C, SIGTERM, alarms and asynchronous exceptions, anywhere in a call of a Graph."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.attack.loops import (
    KINDS,
    Stop,
    as_eager_after,
    batch,
    ctrl_c,
    handled,
    made,
    stop,
    world,
)
from tests.contract.models import Function, same
from tests.support import thinned
from torchgraph.calls import compiler, live_step, programs, recordings
from torchgraph.replay import replay

pytestmark = pytest.mark.usefixtures("interruptible")


@contextmanager
def sent_after(seconds: float, number: int = signal.SIGINT) -> Iterator[None]:
    over = threading.Event()

    def send() -> None:
        if not over.wait(seconds):
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def interrupted_at_random(kind: str, seconds: float, number: int) -> None:
    """Train until a signal comes; then all is as after whole steps."""
    loop = made(kind)
    graph, before = loop.graph(), world()
    torch.manual_seed(3)
    with pytest.raises((KeyboardInterrupt, Stop)), sent_after(seconds, number):  # noqa: PT012  # it may come at any line
        for step in range(10_000):
            graph(batch(step))
    assert world() == before
    as_eager_after(loop, graph, kind, 3)


@pytest.mark.parametrize(
    "kind", thinned(KINDS, keep=["checkpoint", "user's optimizer", "scheduler"])
)
def test_ctrl_c_at_a_random_moment_leaves_whole_steps(kind: str) -> None:
    chance = random.Random(kind)
    for _ in range(3):
        interrupted_at_random(kind, chance.uniform(0, 0.1), signal.SIGINT)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGALRM])
@pytest.mark.parametrize("kind", KINDS)
def test_sixty_signals_at_random_moments_leave_whole_steps(kind: str, number: int) -> None:
    chance = random.Random(f"{kind} {number}")
    with handled(number, stop):
        for _ in range(60):
            interrupted_at_random(kind, chance.uniform(0, 0.15), number)


PHASES = {
    "the scan": (live_step.LiveStep, "scan"),
    "the capture": (compiler, "program_of"),
    "the passes": (compiler, "run"),
    "the making of a replay": (compiler, "Replay"),
    "the comparison": (recordings, "difference"),
    "the confirmation": (recordings, "unlike"),
    "the binding": (replay.Replay, "refit"),
    "the commit": (replay.Commit, "take"),
    "the count": (live_step.LiveStep, "note"),
}


@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_in_each_phase_waits_for_the_whole_step(
    phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = made("scheduler")
    graph, before, raised = loop.graph(), world(), 0
    holder, name = PHASES[phase]
    plain = getattr(holder, name)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        ctrl_c()
        return plain(*args, **kwargs)

    torch.manual_seed(3)
    monkeypatch.setattr(holder, name, interrupted)
    for step in range(4):
        try:
            graph(batch(step))
        except KeyboardInterrupt:
            raised += 1
        assert graph.state_dict()["_train"]["step"] == step + 1
    monkeypatch.undo()
    assert raised
    assert world() == before
    as_eager_after(loop, graph, "scheduler", 3)


def test_ctrl_c_in_a_look_aside_leaves_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = made("plain")
    graph = loop.graph()
    torch.manual_seed(3)
    for step in range(3):
        graph(batch(step))
    taken = programs.Programs.dry_outcome

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        ctrl_c()
        return taken(*args, **kwargs)

    monkeypatch.setattr(programs.Programs, "dry_outcome", interrupted)
    looks: list[Callable[[], object]] = [
        lambda: graph.check(torch.ones(5, 4)),
        lambda: graph.report(memory=[torch.ones(6, 4)]),
    ]
    for look in looks:
        with pytest.raises(KeyboardInterrupt):
            look()
    as_eager_after(loop, graph, "plain", 3)


# --- the user's own code --------------------------------------------------------------------------


def hanging(model: nn.Module, optimizer: torch.optim.Optimizer, first: Callable[[], object]) -> Any:
    """A Graph whose build never ends of itself, once ``first`` has run."""

    def build(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        first()
        time.sleep(60)
        loss.backward()
        return loss

    return Function(build, optimizer, model=model)


def test_an_alarm_ends_a_build_that_hangs_and_nothing_has_happened() -> None:
    loop = made("plain")
    graph, before = hanging(loop.model, loop.optimizer, lambda: None), loop.state()
    with handled(signal.SIGALRM, stop):
        signal.setitimer(signal.ITIMER_REAL, 0.4)
        with pytest.raises(Stop):
            graph(batch(0))
    assert same(loop.state(), before)


def test_ctrl_c_that_came_in_torchs_code_reaches_a_build_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = made("plain")
    graph, before = hanging(loop.model, loop.optimizer, lambda: None), loop.state()
    plain = live_step.LiveStep.scan

    def interrupted(self: Any) -> Any:
        ctrl_c()
        return plain(self)

    monkeypatch.setattr(live_step.LiveStep, "scan", interrupted)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        graph(batch(0))
    assert time.monotonic() - began < 20
    assert same(loop.state(), before)


def test_a_second_ctrl_c_leaves_a_step_that_cannot_be_taken_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first waits, and says after a second what for."""
    loop = made("plain")
    threads = []

    @tg.step
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = loop.model(x).square().mean()
        loss.backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        ctrl_c()
        threads.append(threading.Timer(1.3, ctrl_c))
        threads[-1].start()
        time.sleep(60)
        return loss

    began = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step_of_one = batch(0)
        with pytest.raises(KeyboardInterrupt):
            step(step_of_one)
        if time.monotonic() - began < 1:  # before it was known that it steps itself
            with pytest.raises(KeyboardInterrupt):
                step(step_of_one)
    assert time.monotonic() - began < 20
    assert "Ctrl-C waits for the end of this step; a second one" in capsys.readouterr().err
    for thread in threads:
        thread.join()
