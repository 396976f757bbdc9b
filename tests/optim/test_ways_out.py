"""The way out of an error about optimizers, followed to the letter, gives eager's numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchgraph as tg
from tests.contract.models import Function, same
from tests.test_ways_out import batches, model
from torchgraph import errors


class Twin(NamedTuple):
    """The parts of a loop, equal ones each time."""

    net: nn.Module
    optimizer: torch.optim.Optimizer


def twin(**options: Any) -> Twin:
    net = model()
    return Twin(net, torch.optim.SGD(net.parameters(), lr=0.1, **options))


def plain(parts: Twin) -> tuple[list[Any], Any]:
    results = []
    for x in batches():
        loss = parts.net(x).square().mean()
        loss.backward()
        parts.optimizer.step()
        parts.optimizer.zero_grad()
        results.append(loss.detach())
    return results, dict(parts.net.state_dict())


def test_backward_without_an_optimizer():
    parts = twin()

    def build(x):
        loss = parts.net(x).square().mean()
        loss.backward()
        return loss

    with pytest.raises(errors.BackwardWithoutOptimizer, match=r"self.add_optimizer\(optimizer\)"):
        Function(build, net=parts.net)(*batches(1))
    graph = Function(build, parts.optimizer, net=parts.net)
    found = [graph(x) for x in batches()], dict(parts.net.state_dict())
    assert same(found, plain(twin()))


def test_or_the_gradients_are_returned():
    net = model()

    def build(x):
        return torch.autograd.grad(net(x).square().mean(), list(net.parameters()))

    graph = Function(build, net=net)
    assert same([graph(x) for x in batches()], [build(x) for x in batches()])


def gan() -> Any:
    """Two networks that train each other, and their optimizers."""
    torch.manual_seed(0)
    g, d = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = [torch.optim.Adam(net.parameters(), lr=0.05) for net in (g, d)]

    def step(x):
        optimizers[1].zero_grad()
        made = g(x)
        loss = functional.softplus(-d(x)).mean() + functional.softplus(d(made.detach())).mean()
        loss.backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        fooled = functional.softplus(-d(made)).mean()
        fooled.backward()
        optimizers[0].step()
        return loss.detach(), fooled.detach()

    return step, g, d, optimizers


def test_two_optimizers_in_one_build():
    """Take them all in build, as ``tg.step`` has them: that is what a GAN needs."""
    step, g, d, optimizers = gan()
    refused = Function(step, *optimizers, g=g, d=d)
    refused.config.set_gradient_accumulation_steps(2)
    with pytest.raises(errors.OptimizerStepInBuild, match="take them all in build"):
        refused(*batches(1))
    plain_step, *nets, _ = gan()
    expected = [plain_step(x) for x in batches()], [dict(net.state_dict()) for net in nets]
    for whole in (True, False):
        step, g, d, _ = gan()
        graph = tg.step(step) if whole else Function(step, g=g, d=d)
        found = [graph(x) for x in batches()], [dict(net.state_dict()) for net in (g, d)]
        assert same(found, expected)


def test_a_parameter_in_two_optimizers():
    parts = twin()
    refused = Function(lambda x: None, parts.optimizer, net=parts.net)
    refused.add_optimizer(torch.optim.SGD([parts.net.weight], lr=0.1))
    with pytest.raises(errors.ParameterInTwoOptimizers, match="give each parameter to one"):
        refused(*batches(1))
    net = model()
    graph = Function(lambda x: train(net, x), net=net)
    graph.add_optimizer(torch.optim.SGD([net.weight], lr=0.1))
    graph.add_optimizer(torch.optim.SGD([net.bias], lr=0.1))
    found = [graph(x) for x in batches()], dict(net.state_dict())
    assert same(found, plain(twin()))


def train(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = net(x).square().mean()
    loss.backward()
    return loss


@pytest.mark.parametrize("way", ["plain torch.optim.SGD", "leave is_sparse out"])
def test_sparse_rows(way):
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        table = nn.Embedding(9, 4)
        kind = torch.optim.SGD if way.startswith("plain") else torch.optim.Adam
        return table, kind(table.parameters(), lr=0.1)

    def build(table: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return train(table, (x * 3).long().abs() % 9)

    table, _ = make()
    with pytest.raises(errors.UnsupportedOptimizer, match=way):
        Function(lambda x: build(table, x), table=table).add_optimizer(
            torch.optim.Adam(table.parameters()), is_sparse=True
        )
    table, optimizer = make()
    graph = Function(lambda x: build(table, x), table=table)
    graph.add_optimizer(optimizer, is_sparse=way.startswith("plain"))
    found = [graph(x) for x in batches()], dict(table.state_dict())
    table, optimizer = make()
    expected = []
    for x in batches():
        expected.append(build(table, x).detach())
        optimizer.step()
        optimizer.zero_grad()
    assert same(found, (expected, dict(table.state_dict())))


def test_a_scheduler_that_is_stepped_twice():
    def make() -> tuple[Twin, Any]:
        parts = twin()
        return parts, torch.optim.lr_scheduler.StepLR(parts.optimizer, 2, 0.5)

    def graph_of(parts: Twin, scheduler: Any) -> tg.Graph:
        graph = Function(lambda x: train(parts.net, x), net=parts.net)
        graph.add_optimizer(parts.optimizer, lr_sch=scheduler)
        return graph

    parts, scheduler = make()
    graph = graph_of(parts, scheduler)
    graph(*batches(1))
    scheduler.step()
    with pytest.raises(errors.SchedulerSteppedTwice, match="leave lr_sch out of add_optimizer"):
        graph(*batches(1))

    parts, scheduler = make()
    expected = []
    for x in batches():
        expected.append(train(parts.net, x).detach())
        parts.optimizer.step()
        parts.optimizer.zero_grad()
        scheduler.step()
    expected = expected, dict(parts.net.state_dict())

    parts, scheduler = make()
    graph, found = graph_of(parts, None), []  # "step it yourself and leave lr_sch out"
    for x in batches():
        found.append(graph(x))
        scheduler.step()
    assert same((found, dict(parts.net.state_dict())), expected)
    parts, scheduler = make()
    graph = graph_of(parts, scheduler)  # "or leave the stepping to the Graph"
    found = [graph(x) for x in batches()]
    assert same((found, dict(parts.net.state_dict())), expected)


def test_gradients_that_were_left():
    parts = twin()
    train(parts.net, *batches(1))
    graph = Function(lambda x: train(parts.net, x), parts.optimizer, net=parts.net)
    with pytest.raises(errors.GradPresent, match=r"optimizer.zero_grad\(set_to_none=True\)"):
        graph.check(*batches(1))
    parts.optimizer.zero_grad(set_to_none=True)
    graph.check(*batches(1))
    found = [graph(x) for x in batches()], dict(parts.net.state_dict())
    assert same(found, plain(twin()))
