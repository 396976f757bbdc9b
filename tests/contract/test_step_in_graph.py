"""A Graph whose `build` calls ``optimizer.step()``: with and without `add_optimizer`."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchgraph as tg
from tests.cases.plays import Play
from tests.cases.table import Table
from tests.contract.loops import mlp, pairs, snapshot
from torchgraph.counters import counters
from torchgraph.errors import OptimizerStepInBuild, ScalerInBuild


class Own(tg.Graph):
    """Steps its optimizer itself.

    Args:
        added: whether the Graph is told of the optimizer.
    """

    def __init__(self, added: bool = True, scheduled: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model, self.scheduled = mlp(), scheduled
        optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        self.parts = SimpleNamespace(optimizer=optimizer, schedule=schedule)
        if added:
            self.add_optimizer(optimizer)

    def loss(self, x, y):
        return functional.mse_loss(self.model(x), y)

    def build(self, x, y):
        self.parts.optimizer.zero_grad()
        loss = self.loss(x, y)
        loss.backward()
        self.parts.optimizer.step()
        if self.scheduled:
            self.parts.schedule.step()
        return loss


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("added", [False, True])
def test_it_is_the_eager_step(added, scheduled):
    def after_each(graph: Own, call: Callable[..., Any]) -> list[str]:
        torch.manual_seed(1)
        parts = graph.model, graph.parts.optimizer, graph.parts.schedule
        return [str(snapshot([call(*batch), *parts])) for batch in pairs(9)()]

    eager, graph = Own(added, scheduled), Own(added, scheduled)
    expected = after_each(eager, eager.build)
    with counters.expect(replays=7):
        assert after_each(graph, graph) == expected


class ByAnother(Own):
    def build(self, x, y):
        self.loss(x, y).backward()
        torch.optim.SGD(self.model.parameters(), lr=0.1).step()


class ByAScaler(Own):
    def build(self, x, y):
        torch.amp.GradScaler("cpu").scale(self.loss(x, y)).backward()


class Later(Own):
    """Leaves the update to the Graph at first."""

    own = False

    def build(self, x, y):
        loss = self.loss(x, y)
        loss.backward()
        if self.own:
            self.parts.optimizer.step()
        return loss


SET: dict[str, Callable[[Own], Any]] = {
    "gradient accumulation": lambda graph: graph.config.set_gradient_accumulation_steps(3),
    "a grad scaler": lambda graph: graph.set_grad_scaler(torch.amp.GradScaler("cpu")),
    "clipping": lambda graph: graph.config.set_clip_grad_norm(1.0),
}


@pytest.mark.parametrize("what", SET)
def test_what_was_set_is_the_graphs(what):
    graph = Own()
    SET[what](graph)

    with pytest.raises(OptimizerStepInBuild, match=f"it has {what} set"):
        graph(*pairs(1)()[0])


def test_the_update_was_left_to_the_graph():
    others = "other optimizers were given to add_optimizer"
    with pytest.raises(OptimizerStepInBuild, match=others):
        ByAnother()(*pairs(1)()[0])
    with pytest.raises(ScalerInBuild):
        ByAScaler()(*pairs(1)()[0])


def test_a_step_that_begins_later_is_refused():
    graph = Later()
    batches = pairs(5)()
    for batch in batches[:4]:
        graph(*batch)
    graph.own = True
    before = str(snapshot([graph.model, graph.parts.optimizer]))

    with pytest.raises(OptimizerStepInBuild, match="did not in earlier calls"):
        graph(*batches[4])
    assert str(snapshot([graph.model, graph.parts.optimizer])) == before


case = Table(fallback="eager")


def begins_without(kind: str) -> Play:
    """The first call leaves the step out; names in `build` tell that it steps."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

    def build(x, update):
        loss = model(x).square().mean()
        if kind == "scaler":
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            if update:
                optimizer.step()
                optimizer.zero_grad()
        return loss.detach()

    calls = [(torch.randn(3, 4), number % 2 == 1) for number in range(12)]
    if kind == "scaler":
        calls[0][0].mul_(torch.inf)
    return Play(build, [model], calls=calls)


case(lambda: begins_without("scaler"), name="gradients_overflow", forms="graph", says=None)
case(lambda: begins_without("steps"), name="a_micro_batch_comes_first", forms="graph", says=None)


@pytest.mark.parametrize("case", case)
def test_the_first_call_may_leave_the_step_out(case):
    case.check()
