"""A step that stays in eager: its function runs as it stands, and little more is done for it."""

from __future__ import annotations

import contextlib
import itertools
import time
import warnings
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.contract.models import same, snapshot
from torchgraph.errors import EagerWarning, UnsupportedOutput
from torchgraph.live.step import Step
from torchgraph.reasons import Reason
from torchgraph.testing import counters


class Counting:
    """A loop that does something else in each third call, by a text of its own that grows."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 2)
        self.model.register_buffer("total", torch.zeros(2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.calls = ""

    def step(self, x: torch.Tensor) -> dict[str, Any]:
        self.calls += "1"
        out = self.model(x)
        loss = out.square().mean() * (2.0 if len(self.calls) % 3 == 0 else 1.0)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.model.total += out.detach().sum(0)
        if x.sum() > 1e6:
            raise ValueError("too large")
        return {
            "loss": loss,
            "same": loss,
            "weight": self.model.weight,
            "again": self.model(x).sum(),
            "total": self.model.total,
            "given": x,
            "gradient": self.model.bias.grad,
        }


def copied(found: dict[str, Any]) -> dict[str, Any]:
    return {name: one.detach().clone() for name, one in found.items()}


def batches(count: int) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(5)
    return [torch.randn(3, 4, generator=source) for _ in range(count)]


def test_it_runs_as_it_stands(monkeypatch):
    loop, twin = Counting(), Counting()
    step = tg.step(loop.step)
    given = batches(20)
    with pytest.warns(EagerWarning, match="calls"):
        found = list(map(step, given))
    assert same(found, [copied(twin.step(x.clone())) for x in given])

    x = batches(1)[0]
    with monkeypatch.context() as patched:
        patched.setattr(Step, "scan", None)  # it looks at no state
        for batch in batches(8):
            assert same(step(batch), twin.step(batch.clone()))
            assert same(snapshot(loop.model, loop.optimizer), snapshot(twin.model, twin.optimizer))
        assert loop.calls == twin.calls

    for one in (step, twin.step):  # what it raises leaves what eager leaves
        with pytest.raises(ValueError, match="too large"):
            one(torch.full((3, 4), 1e6))
    assert same(snapshot(loop.model, loop.optimizer), snapshot(twin.model, twin.optimizer))
    assert same(step(x), twin.step(x.clone()))

    before = sum(one.count for one in step._runner.recordings.fallback.eager)
    result = step(x)  # which is detached, and stays as it is
    assert sum(one.count for one in step._runner.recordings.fallback.eager) == before + 1
    assert "in eager" in str(step.report())
    kept = copied(result)
    for one in (x, loop.model.total, loop.model.bias.grad, loop.model.weight.detach()):
        one.zero_()
    assert same(result, kept)
    assert result["same"] is result["loss"]
    assert not result["weight"].requires_grad
    with pytest.raises(UnsupportedOutput):
        result["again"].backward()


@pytest.mark.filterwarnings("ignore::torchgraph.errors.CacheThrashWarning")
def test_calls_with_another_number_each_are_run_as_they_stand(monkeypatch):
    loop, twin = Counting(), Counting()

    def numbered(one: Counting) -> Any:
        def step(x: torch.Tensor, number: int) -> torch.Tensor:
            one.optimizer.zero_grad()
            loss = one.model(x).square().mean() * (number % 3)
            loss.backward()
            one.optimizer.step()
            return loss.detach()

        return step

    step, eager = tg.step(numbered(loop)), numbered(twin)
    with pytest.warns(EagerWarning, match="others at each call"):
        found = [step(x, number) for number, x in enumerate(batches(30))]
    assert same(found, [eager(x, number) for number, x in enumerate(batches(30))])
    with monkeypatch.context() as patched:
        patched.setattr(Step, "scan", None)
        for number in range(100, 108):
            x = batches(1)[0]
            assert same(step(x, number), eager(x, number))
    assert same(snapshot(loop.model, loop.optimizer), snapshot(twin.model, twin.optimizer))
    before = counters.replays
    for _ in range(8):  # now they are like each other
        assert same(step(x, 1), eager(x, 1))
    assert counters.replays > before


@pytest.mark.filterwarnings("ignore::torchgraph.errors.GraphWarning")
def test_a_model_that_has_grown_is_looked_at_again():
    torch.manual_seed(0)
    mine = nn.Sequential(nn.Linear(4, 4))
    graphed = tg.step(lambda x: mine(x).square().mean())
    graphed.config.set_fallback("eager")
    before = counters.replays
    for number, x in enumerate(batches(140)):
        if 2 <= number <= 12:
            mine.append(nn.Linear(4, 4))
        if number == 101:
            before = counters.replays
        assert torch.equal(graphed(x), mine(x).square().mean())
    assert counters.replays - before >= 30


CALLS = ContextVar("CALLS", default=0)
LAYER = nn.Linear(3, 1)
OPTIMIZER = torch.optim.SGD(LAYER.parameters(), lr=0.1)
TEXTS = {"loss": "loss = out.sum()"}


def asks_a_clock(x):
    return x * (time.time() > 0)


def leaves_a_setting(x):
    CALLS.set(CALLS.get() + 1)
    return x * 2


def catches(x):
    with contextlib.suppress(RuntimeError):
        torch.linalg.cholesky(-torch.eye(2) * x.abs().sum())
    return x * 2


def runs_text(x):
    """In one line: its globals, in which it puts a tensor, are others in each call."""
    # fmt: off
    space = {"out": LAYER(x)}; exec(TEXTS["loss"], space); descend(space["loss"])  # noqa: E702
    # fmt: on
    return space["loss"]


def descend(loss):
    OPTIMIZER.zero_grad()
    loss.backward()
    OPTIMIZER.step()


@pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (asks_a_clock, Reason.PROCESS),
        (leaves_a_setting, Reason.PROCESS),
        (catches, Reason.RAISES),
        (runs_text, Reason.STRUCTURE),
    ],
)
def test_a_reason_says_what_stands_in_the_way(function, reason):
    step = tg.step(function)
    for _ in range(24):
        step(torch.ones(3))
    assert {one.reason for one in step.report().calls.eager} == {reason}


def test_a_call_with_objects_is_known_by_its_outline() -> None:
    class Trainer:
        def __init__(self) -> None:
            torch.manual_seed(0)
            self.model, self.scales = nn.Linear(4, 2), itertools.cycle((1.0, 2.0, 2.0))
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        @tg.step
        def body(self, model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
            scale = next(self.scales)
            self.optimizer.zero_grad()
            loss = model(inputs["x"]).square().mean() * scale
            loss.backward()
            self.optimizer.step()
            return loss

    trainer = Trainer()
    graph: Any = trainer.body
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EagerWarning)
        for _ in range(8):
            trainer.body(trainer.model, {"x": torch.randn(3, 4)})
    assert graph.report().calls.eager, "an iterator is another one at each call"
    assert graph._runner.eager.outlines.known


def test_what_has_an_attribute_is_asked_for_is_no_read_of_all() -> None:
    layer = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 100)
    wrapped = SimpleNamespace(optimizer=optimizer)

    @tg.step
    def step(x):
        if hasattr(wrapped.optimizer, "train") and callable(wrapped.optimizer.train):
            wrapped.optimizer.train()
        optimizer.zero_grad()
        loss = layer(x).mean()
        loss.backward()
        wrapped.optimizer.step()
        return loss

    for _ in range(6):
        step(torch.randn(3, 4))
        schedule.step()
    assert step.report().calls.programs == 4  # its rate moves, as a scheduler's does
