"""A Graph whose `build` calls ``optimizer.step()``: with and without `add_optimizer`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchgraph as tg
from tests.contract.loops import mlp, pairs, snapshot
from tests.contract.models import Function, same
from torchgraph.counters import counters
from torchgraph.errors import OptimizerStepInBuild, ScalerInBuild


class Parts:
    """What updates a model."""

    def __init__(self, model: nn.Module) -> None:
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)


class Own(tg.Graph):
    """Steps its optimizer itself.

    Args:
        added: whether the Graph is told of the optimizer.
    """

    def __init__(self, added: bool, scheduled: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = mlp()
        self.parts = Parts(self.model)
        self.scheduled = scheduled
        if added:
            self.add_optimizer(self.parts.optimizer)

    def build(self, x, y):
        self.parts.optimizer.zero_grad()
        loss = functional.mse_loss(self.model(x), y)
        loss.backward()
        self.parts.optimizer.step()
        if self.scheduled:
            self.parts.schedule.step()
        return loss


def after_each(graph: Own, call: Callable[..., Any]) -> list[str]:
    torch.manual_seed(1)
    parts = graph.model, graph.parts.optimizer, graph.parts.schedule
    return [str(snapshot([call(*batch), *parts])) for batch in pairs(9)()]


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("added", [False, True])
def test_it_is_the_eager_step(added, scheduled):
    eager, graph = Own(added, scheduled), Own(added, scheduled)
    expected = after_each(eager, eager.build)
    before = counters.replays

    assert after_each(graph, graph) == expected
    assert counters.replays - before == 7


@pytest.mark.parametrize(
    ("configure", "what"),
    [
        (lambda graph: graph.config.set_gradient_accumulation_steps(3), "gradient accumulation"),
        (lambda graph: graph.set_grad_scaler(torch.amp.GradScaler("cpu")), "a grad scaler"),
        (lambda graph: graph.config.set_clip_grad_norm(1.0), "clipping"),
    ],
)
def test_what_was_set_is_the_graphs(configure, what):
    graph = Own(added=True)
    configure(graph)

    with pytest.raises(OptimizerStepInBuild, match=f"it has {what} set"):
        graph(*pairs(1)()[0])


def test_another_optimizer_than_those_that_were_added():
    class Other(Own):
        def build(self, x, y):
            loss = functional.mse_loss(self.model(x), y)
            loss.backward()
            torch.optim.SGD(self.model.parameters(), lr=0.1).step()

    with pytest.raises(OptimizerStepInBuild, match="other optimizers were given to add_optimizer"):
        Other(added=True)(*pairs(1)()[0])


def test_a_step_that_begins_later_is_refused():
    class Later(Own):
        """Leaves the update to the Graph at first."""

        own = False

        def build(self, x, y):
            loss = functional.mse_loss(self.model(x), y)
            loss.backward()
            if self.own:
                self.parts.optimizer.step()
            return loss

    graph = Later(added=True)
    batches = pairs(5)()
    for batch in batches[:4]:
        graph(*batch)
    graph.own = True
    before = str(snapshot([graph.model, graph.parts.optimizer]))

    with pytest.raises(OptimizerStepInBuild, match="did not in earlier calls"):
        graph(*batches[4])
    assert str(snapshot([graph.model, graph.parts.optimizer])) == before


def test_a_scaler_of_a_build_that_leaves_the_update_to_the_graph():
    scaler = torch.amp.GradScaler("cpu")

    class Scaled(Own):
        def build(self, x, y):
            scaler.scale(functional.mse_loss(self.model(x), y)).backward()

    with pytest.raises(ScalerInBuild):
        Scaled(added=True)(*pairs(1)()[0])


@pytest.mark.parametrize("kind", ["scaler", "accumulation"])
def test_the_first_call_may_leave_the_step_out(kind):
    """Gradients overflow, or it is the first micro-batch: names in `build` tell that it steps."""

    def run(graphed):
        torch.manual_seed(0)
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

        graph = Function(build, model=model) if graphed else build
        first = torch.inf if kind == "scaler" else 1.0
        given = [torch.randn(3, 4) * (first if number == 0 else 1.0) for number in range(12)]
        results = [graph(x, number % 2 == 1) for number, x in enumerate(given)]
        return results[1:], model.state_dict()  # the first may be NaN

    assert same(run(True), run(False))
