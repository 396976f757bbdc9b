"""A Graph that trains and stays in eager: little more is done than ``build`` and the update."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.contract.models import same, snapshot
from torchgraph.errors import OptimizerStepInBuild, ScalerInBuild
from torchgraph.live.step import Step

pytestmark = pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")

OPTIMIZERS = {
    "sgd": lambda given: torch.optim.SGD(given, lr=0.1, momentum=0.9),
    "adamw": lambda given: torch.optim.AdamW(given, lr=0.1),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.outer = nn.Linear(8, 2)
        self.seen: list[int] = []
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        return self.outer(self.inner(x))


class Trained(tg.Graph):
    def __init__(self, model: Net, optimizer: Any, fails: Any, **given: Any) -> None:
        super().__init__()
        self.model, self.fails = model, fails
        self.add_optimizer(optimizer, lr_sch=given.get("scheduler"))
        self.set_grad_scaler(given.get("scaler"))
        self.config.set_fallback("eager")
        if given.get("clips"):
            self.config.set_clip_grad_norm(0.1)

    def build(self, x: torch.Tensor) -> dict[str, Any]:
        loss = self.model(x).square().mean()
        loss.backward()
        x.numpy()  # no program follows that
        self.fails()
        return {"loss": loss, "weight": self.model.outer.weight}


class Loop:
    """A Graph, and the same training without it."""

    def __init__(self, make: Any, *, scheduled: bool, scaled: bool, clips: bool) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.twin = copy.deepcopy(self.model)
        self.optimizer, self.other = make(self.model.parameters()), make(self.twin.parameters())
        rates = torch.optim.lr_scheduler.StepLR
        made = [rates(one, 2) if scheduled else None for one in (self.optimizer, self.other)]
        self.scheduler, self.scaler = made[1], None
        scaler = None
        if scaled:
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
            self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
        self.own_scaler = scaler
        self.clips, self.fails = clips, lambda: None
        given = {"scheduler": made[0], "scaler": scaler, "clips": clips}
        self.graph = Trained(self.model, self.optimizer, lambda: self.fails(), **given)

    def eager(self, x: torch.Tensor) -> dict[str, Any]:
        loss = self.twin(x).square().mean()
        weight = self.twin.outer.weight.detach().clone()
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        if self.scaler is not None and self.clips:
            self.scaler.unscale_(self.other)
        if self.clips:
            nn.utils.clip_grad_norm_(self.twin.parameters(), 0.1)
        skipped = False
        if self.scaler is None:
            self.other.step()
        else:
            before = self.scaler.get_scale()
            self.scaler.step(self.other)
            self.scaler.update()
            skipped = self.scaler.get_scale() < before
        if self.scheduler is not None and not skipped:
            self.scheduler.step()
        self.other.zero_grad()
        return {"loss": loss.detach(), "weight": weight}

    def both(self, x: torch.Tensor, seed: int) -> None:
        torch.manual_seed(seed)
        found = self.graph(x)
        torch.manual_seed(seed)
        assert same(found, self.eager(x))
        assert not any(one.requires_grad for one in found.values())
        own, other = (self.model, self.optimizer), (self.twin, self.other)
        assert same(snapshot(*own), snapshot(*other))
        assert self.model.seen == self.twin.seen
        assert all(one.grad is None for one in self.model.parameters())


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_trains_as_eager_does(monkeypatch, name, clips, scaled, scheduled):
    loop = Loop(OPTIMIZERS[name], scheduled=scheduled, scaled=scaled, clips=clips)
    for seed in range(6):
        loop.both(torch.randn(3, 4), seed)
    with monkeypatch.context() as patched:
        patched.setattr(Step, "scan", None)  # it looks at no state
        for seed in range(4):
            loop.both(torch.randn(3, 4), seed)
    if loop.scaler is not None and loop.own_scaler is not None:
        before = copy.deepcopy(loop.model.outer.weight)
        for one in (loop.scaler, loop.own_scaler):
            one.update(2.0**127)
        loop.both(torch.full((3, 4), 9.0), 9)
        assert torch.equal(loop.model.outer.weight, before)  # skipped
        assert loop.own_scaler.get_scale() == loop.scaler.get_scale() == 2.0**126
        for one in (loop.scaler, loop.own_scaler):
            one.update(8.0)
    loop.both(torch.randn(3, 4), 10)


def test_what_build_raises_leaves_all_as_it_was():
    loop = Loop(OPTIMIZERS["sgd"], scheduled=True, scaled=True, clips=False)
    for seed in range(5):
        loop.both(torch.randn(3, 4), seed)
    given = torch.ones(3, 4, requires_grad=False)

    def fails() -> None:
        random.random()
        np.random.standard_normal(1)
        torch.randn(2)
        loop.model.outer.weight = nn.Parameter(torch.zeros(2, 8))
        loop.model.extra = 1
        raise ValueError("on purpose")

    def state() -> list[Any]:
        weights = [*loop.model.parameters(), *loop.model.buffers()]
        versions = [one._version for one in loop.model.parameters()]
        held = [list(map(id, weights)), versions, list(loop.model.seen), loop.model.calls]
        numbers = (random.getstate(), np.random.get_state()[1:3], torch.get_rng_state())
        return [*held, [one.grad for one in weights], *map(str, numbers)]

    before, values = state(), copy.deepcopy(snapshot(loop.model, loop.optimizer))
    loop.fails = fails
    for _ in range(2):
        with pytest.raises(ValueError, match="on purpose"):
            loop.graph(given)
        assert state() == before
        assert not hasattr(loop.model, "extra")
        assert same(snapshot(loop.model, loop.optimizer), values)
    loop.fails = lambda: None
    loop.both(torch.randn(3, 4), 7)


def test_what_is_the_graphs_to_do_is_refused_in_build():
    loop = Loop(OPTIMIZERS["adamw"], scheduled=False, scaled=False, clips=False)
    for seed in range(5):
        loop.both(torch.randn(3, 4), seed)
    scaler = torch.amp.GradScaler("cpu")
    refused = {
        OptimizerStepInBuild: lambda: loop.optimizer.step(),
        ScalerInBuild: lambda: scaler.scale(torch.ones(())),
    }
    for kind, fails in refused.items():
        loop.fails = fails
        with pytest.raises(kind):
            loop.graph(torch.randn(3, 4))
    loop.fails = lambda: None
    loop.both(torch.randn(3, 4), 7)


def test_what_others_change_between_calls_is_seen():
    loop = Loop(OPTIMIZERS["sgd"], scheduled=False, scaled=False, clips=True)
    for seed in range(5):
        loop.both(torch.randn(3, 4), seed)
    for model, optimizer in ((loop.model, loop.optimizer), (loop.twin, loop.other)):
        model.outer = nn.Linear(8, 2, bias=False)
        with torch.no_grad():
            model.outer.weight.fill_(0.5)
        optimizer.add_param_group({"params": [model.outer.weight], "lr": 0.2})
        for group in optimizer.param_groups:
            group["params"][:] = [one for one in group["params"] if _is_in(one, model)]
        optimizer.state.clear()
    for seed in range(4):
        loop.both(torch.randn(3, 4), seed)


def _is_in(parameter: torch.Tensor, model: nn.Module) -> bool:
    return any(parameter is one for one in model.parameters())


def test_a_returned_gradient_is_the_one_that_the_optimizer_reads():
    torch.manual_seed(0)
    model = nn.Linear(3, 1)

    class Returning(tg.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(torch.optim.SGD(model.parameters(), lr=0.0))
            self.config.set_clip_grad_norm(0.01)
            self.config.set_fallback("eager")

        def build(self, x: torch.Tensor) -> Any:
            self.model(x).sum().backward()
            x.numpy()
            return self.model.weight.grad

    graph, x = Returning(), torch.ones(2, 3)
    found = [graph(x) for _ in range(6)]
    assert float(found[0].norm()) < 0.02
    assert all(torch.equal(one, found[0]) for one in found)
