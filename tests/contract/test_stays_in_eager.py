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
from torchgraph.errors import CacheThrashWarning, EagerWarning, UnsupportedOutput
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


@pytest.fixture
def settled():
    """(the loop, its step that stays in eager, a twin): after 20 calls."""
    loop, twin = Counting(), Counting()
    step = tg.step(loop.step)
    given = batches(20)
    with pytest.warns(EagerWarning, match="calls"):
        found = list(map(step, given))
    assert same(found, [copied(twin.step(x.clone())) for x in given])
    return loop, step, twin


def copied(found: dict[str, Any]) -> dict[str, Any]:
    return {name: one.detach().clone() for name, one in found.items()}


def batches(count: int) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(5)
    return [torch.randn(3, 4, generator=source) for _ in range(count)]


def test_it_does_what_eager_does_and_looks_at_no_state(settled, monkeypatch):
    loop, step, twin = settled
    monkeypatch.setattr(Step, "scan", None)
    for x in batches(8):
        assert same(step(x), twin.step(x.clone()))
        assert same(snapshot(loop.model, loop.optimizer), snapshot(twin.model, twin.optimizer))
    assert loop.calls == twin.calls


def test_its_results_are_detached_and_stay_as_they_are(settled):
    loop, step, _ = settled
    x = batches(1)[0]
    found = step(x)
    kept = copied(found)
    x.zero_()
    loop.model.total.zero_()
    loop.model.bias.grad.zero_()
    with torch.no_grad():
        loop.model.weight.zero_()
    assert same(found, kept)
    assert found["same"] is found["loss"]
    assert not found["weight"].requires_grad


def test_a_backward_into_its_result_is_an_error(settled):
    _, step, _ = settled
    again = step(batches(1)[0])["again"]
    with pytest.raises(UnsupportedOutput):
        again.backward()


def test_what_it_raises_leaves_what_eager_leaves(settled):
    loop, step, twin = settled
    for one in (step, twin.step):
        with pytest.raises(ValueError, match="too large"):
            one(torch.full((3, 4), 1e6))
    assert same(snapshot(loop.model, loop.optimizer), snapshot(twin.model, twin.optimizer))
    x = batches(1)[0]
    assert same(step(x), twin.step(x.clone()))


def test_the_report_counts_its_calls(settled):
    _, step, _ = settled
    before = sum(one.count for one in step._runner.recordings.fallback.eager)
    step(batches(1)[0])
    assert sum(one.count for one in step._runner.recordings.fallback.eager) == before + 1
    assert "in eager" in str(step.report())


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


def test_a_model_that_has_grown_is_looked_at_again():
    def grown() -> Any:
        torch.manual_seed(0)
        held = SimpleNamespace(model=nn.Sequential(nn.Linear(4, 4)))

        def step(x: torch.Tensor) -> torch.Tensor:
            return held.model(x).square().mean()

        return held, step

    (mine, step), (its, eager) = grown(), grown()
    graphed = tg.step(step)
    graphed.config.set_fallback("eager")
    replays = 0
    for number, x in enumerate(batches(140)):
        before = counters.replays
        if 2 <= number <= 12:
            torch.manual_seed(number)
            layer = nn.Linear(4, 4)
            for one in (mine, its):
                one.model.append(layer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EagerWarning)
            warnings.simplefilter("ignore", CacheThrashWarning)
            assert torch.equal(graphed(x), eager(x))
        replays = counters.replays - before + replays * (number > 100)
    assert replays >= 30


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
