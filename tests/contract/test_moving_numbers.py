"""Counters and pointers in Python, and optimizers that ask for closures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.cases.plays import Play, singles
from tests.cases.table import Table
from tests.contract.models import Eval, Function, adam, data, same
from torchgraph import errors
from torchgraph.errors import EagerWarning, UnsupportedOptimizer

case = Table(fallback="eager")


class Queue(nn.Module):
    """The keys of the last batches, as MoCo keeps them."""

    def __init__(self, size: int, *, in_place: bool = False) -> None:
        super().__init__()
        self.linear, self.size, self.in_place = nn.Linear(4, 2), size, in_place
        self.register_buffer("queue", torch.zeros(2, size))
        self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))

    def forward(self, x):
        keys, n = self.linear(x), len(x)
        if self.in_place:
            at = (self.ptr + torch.arange(n)) % self.size
            self.queue.index_copy_(1, at, keys.detach().T)
            self.ptr.add_(n).remainder_(self.size)
        else:
            ptr = int(self.ptr)  # HERE
            self.queue[:, ptr : ptr + n] = keys.detach().T
            self.ptr[0] = (ptr + n) % self.size
        return keys @ self.queue.clone()


def trained(model: nn.Module, optimizer: Any = None, number: int = 18) -> Play:
    optimizer = optimizer or adam(model)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return Play(step, [model, optimizer], calls=singles(number))


class Counts(nn.Linear):
    """Divides by the number of its calls."""

    def __init__(self, *, buffer: bool = False) -> None:
        super().__init__(4, 2)
        if buffer:
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        else:
            self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) / self.calls


def counted(model: nn.Module) -> Play:
    return Play(lambda x: model(x), [model, lambda: model.calls], calls=singles(8))


class Decays(torch.optim.Optimizer):
    """Its number of steps lies in a group."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1, "step": 0})

    @torch.no_grad()
    def step(self, closure=None):
        group = self.param_groups[0]
        group["step"] += 1
        for parameter in group["params"]:
            parameter.add_(parameter.grad, alpha=-group["lr"] / group["step"])


def decaying() -> Play:
    model = nn.Linear(4, 1)
    return trained(model, Decays(model.parameters()), 8)


case.rows(
    {"a_short_queue": lambda: trained(Queue(15))},
    forms="graph",
    recorded=3,
    least=9,
    says=r"(?s)module0.ptr moves.*# HERE",
)
case.rows(
    {"a_queue_told_to_be_written": lambda: trained(Queue(60, in_place=True))},
    forms="graph",
    recorded=1,
    served=16,
)
case.rows({"a_counter": lambda: counted(Counts())}, forms="graph", recorded=1, served=5)
case.rows(
    {
        "a_counter_in_a_buffer": lambda: counted(Counts(buffer=True)),
        "a_step_in_a_param_group": decaying,
    },
    forms="graph",
    recorded=1,
    served=6,
)


@pytest.mark.parametrize("case", case)
def test_moving_numbers(case):
    case.check()


def test_a_pointer_that_python_reads_is_told_at_the_third_capture():
    model = Queue(60)
    graph = Eval(model)
    with torch.no_grad(), pytest.warns(errors.GraphWarning) as told:
        list(map(graph, data(14)))
    assert [one.category for one in told] == [errors.MovingValue, EagerWarning]
    text = str(told[0].message)
    assert "model.ptr moves" in text
    assert "# HERE" in text
    assert "index_copy_" in text


# --- closures -------------------------------------------------------------------------------------


def loss_of(model, x):
    return model(x).square().mean()


@pytest.mark.parametrize("early", [True, False])
def test_lbfgs_runs_whenever_the_fallback_is_set(early):
    model = nn.Linear(4, 1)
    graph = Function(lambda x: loss_of(model, x).backward(), model=model)
    if early:
        graph.config.set_fallback("eager")
    graph.add_optimizer(torch.optim.LBFGS(model.parameters()))
    graph.config.set_fallback("eager")
    before = loss_of(model, *data())
    with pytest.warns(EagerWarning, match="LBFGS"):
        graph(*data())
    assert loss_of(model, *data()) < before


def backwards(model, x):
    loss = loss_of(model, x)
    loss.backward()
    return loss.detach()


@pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")
def test_lbfgs_with_accumulation_and_clipping():
    mine, other = nn.Linear(4, 2), nn.Linear(4, 2)
    other.load_state_dict(mine.state_dict())
    optimizers = [torch.optim.LBFGS(m.parameters(), max_iter=4) for m in (mine, other)]
    graph = Function(lambda x: backwards(mine, x), optimizers[0], model=mine)
    graph.config.set_fallback("eager")
    graph.config.set_gradient_accumulation_steps(2)
    graph.config.set_clip_grad_norm(0.5)

    def closure(x, seen):
        optimizers[1].zero_grad()
        losses = [loss_of(other, part) for part in x.chunk(2)]
        for loss in losses:
            (loss / 2).backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        seen.append(torch.stack(losses).detach())
        return (losses[0] + losses[1]) / 2

    for x in data(4, rows=6):
        got = graph(x)
        seen: list[torch.Tensor] = []
        optimizers[1].step(lambda x=x, seen=seen: closure(x, seen))
        assert len(seen) > 1
        assert torch.equal(got, seen[0])
        assert same(mine.state_dict(), other.state_dict())


def test_lbfgs_beside_another_optimizer_is_refused_in_any_case():
    model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1))
    both = torch.optim.LBFGS(model[0].parameters()), adam(model[1])
    graph = Function(lambda x: loss_of(model, x).backward(), *both, model=model)
    graph.config.set_fallback("eager")
    with pytest.raises(UnsupportedOptimizer, match="alone"):
        graph(*data())
