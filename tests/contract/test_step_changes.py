"""``tg.step``: what a user changes in the middle of a training is in the next call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchgraph as tg
from tests import support
from tests.contract.loops import Loop, assert_as_eager, mlp, pairs, snapshot, supervised
from torchgraph.counters import counters

Change = Callable[[nn.Module, torch.optim.Optimizer], Any]


momentum = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))


def freeze(net: nn.Module, _: Any) -> None:
    net[0].requires_grad_(False)


def thaw(net: nn.Module, _: Any) -> None:
    net[0].requires_grad_(True)


def set_rate(rate: float) -> Change:
    return lambda _, optimizer: optimizer.param_groups[0].update(lr=rate)


def forget_momentum(_: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.state.clear()


def new_weights(net: nn.Module, _: Any) -> None:
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.ones_like(parameter))


def new_data(net: nn.Module, _: Any) -> None:
    net[0].weight.data = torch.ones(8, 4)


def drop_gradients(net: nn.Module, _: Any) -> None:
    net.zero_grad()


def evaluate(net: nn.Module, _: Any) -> None:
    net.eval()


def train(net: nn.Module, _: Any) -> None:
    net.train()


@pytest.mark.parametrize(
    ("changes", "model", "replayed"),
    [
        ({4: freeze, 8: thaw}, mlp, 7),
        ({4: set_rate(0.01), 6: set_rate(0.5)}, mlp, 9),
        ({5: forget_momentum}, mlp, 8),
        ({5: new_weights}, mlp, 9),
        ({5: new_data}, mlp, 9),
        ({5: drop_gradients}, mlp, 9),
        ({4: evaluate, 8: train}, with_dropout, 7),
    ],
    ids=["thaw", "rate", "state", "weights", "data", "gradients", "modes"],
)
def test_changes_from_outside(changes, model, replayed):
    assert_as_eager(
        partial(supervised, momentum, model, between=changes), pairs(12), replayed=replayed
    )


def test_layers_are_thawed_one_after_the_other():
    def make():
        loop = supervised(momentum, lambda: nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)]))
        net = loop.owners[0].requires_grad_(False)
        thawing = {4 * n: partial(net[2 - n].requires_grad_, True) for n in range(3)}
        return Loop(loop.step, loop.owners, thawing)

    assert_as_eager(make, lambda: [(x, x) for x, _ in pairs(12)()], replayed=3)


@pytest.mark.parametrize("new", ["optimizer", "kind", "model"])
def test_what_a_name_of_the_step_stands_for_is_replaced(new):
    def make():
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x, y):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        def replace():
            nonlocal model, optimizer
            model = mlp() if new == "model" else model
            kind = torch.optim.Adam if new == "kind" else torch.optim.SGD
            optimizer = kind(model.parameters(), lr=0.01)

        return Loop(step, [lambda: snapshot(model), lambda: optimizer.state_dict()], {5: replace})

    assert_as_eager(make, pairs(9), replayed=5)


def test_a_param_group_is_added():
    def make():
        more = nn.Linear(1, 1)

        def model():
            return nn.Sequential(mlp(), more)

        def add(_, optimizer):
            optimizer.add_param_group({"params": more.parameters(), "lr": 0.01})

        def of_the_first(parameters):
            return momentum(list(parameters)[:4])

        return supervised(of_the_first, model, between={6: add})

    assert_as_eager(make, pairs(12), replayed=6)


@pytest.mark.parametrize(("every", "replayed"), [(1, 0), (5, 2)])
def test_the_step_makes_a_layer_and_trains_it(every, replayed):
    """The optimizer knows parameters that were not there as the call began."""

    def make():
        model = mlp()
        optimizer, calls = torch.optim.SGD(model.parameters(), lr=0.1), [0]

        def step(x, y):
            calls[0] += 1
            if calls[0] % every == 0:
                model[-1] = nn.Linear(model[-1].in_features, 1)
                optimizer.param_groups[0]["params"][2:] = model[-1].parameters()
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return Loop(step, [model, optimizer, calls])

    warned = pytest.warns(tg.errors.EagerWarning, match="a parameter that the step has made")
    with warned if every == 1 else nullcontext():
        assert_as_eager(make, pairs(8), replayed)


def test_another_size_of_batch_has_its_own_program():
    def batches():
        return [
            (torch.randn(rows, 4), torch.randn(rows, 1)) for rows in (3, 3, 3, 3, 5, 5, 5, 3, 5)
        ]

    graph = assert_as_eager(supervised, batches, replayed=5)

    assert len(support.replays(graph)) == 2


class Stop(Exception):
    """Raised by the loops below."""


@pytest.mark.parametrize(
    ("when", "place"), [(0, "backward"), (1, "forward"), (1, "step"), (4, "forward"), (4, "step")]
)
def test_an_exception_leaves_what_it_leaves_in_eager(when, place):
    def run(wrap):
        torch.manual_seed(0)
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

        def step(x, y, stop):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            for name, act in (("forward", loss.backward), ("backward", optimizer.step)):
                if stop == name:
                    raise Stop(name)
                act()
            if stop == "step":
                raise Stop("step")
            return loss

        function, found = wrap(step), []
        for number, batch in enumerate(pairs(8)()):
            if number == when:
                with pytest.raises(Stop):
                    function(*batch, place)
            else:
                found.append(snapshot(function(*batch, "")))
            found.append(snapshot([model, optimizer]))
        return found

    before = counters.replays
    expected, found = run(lambda step: step), run(tg.step)

    assert str(found) == str(expected)
    assert counters.replays - before >= 3


def test_a_check_of_the_user_raises_where_programs_serve_too():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @tg.step
    def step(x, y):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        if not loss.isfinite():
            raise Stop
        loss.backward()
        optimizer.step()
        return loss

    for batch in pairs(5)():
        step(*batch)
    before = snapshot(list(model.parameters()))
    with pytest.raises(Stop):
        step(torch.full((3, 4), float("nan")), torch.randn(3, 1))

    assert str(snapshot(list(model.parameters()))) == str(before)
    assert model[0].weight.grad is None  # as zero_grad left it


def accumulated(parameter: torch.Tensor) -> None:
    parameter.data.sub_(parameter.grad, alpha=0.1)
    parameter.grad = None


@pytest.mark.parametrize("held", ["module", "closure"])
@pytest.mark.parametrize(
    ("kind", "hook"),
    [("register_post_accumulate_grad_hook", accumulated), ("register_hook", lambda g: g * 3)],
    ids=["accumulated", "gradient"],
)
def test_hooks_of_leaves_without_an_optimizer_come_and_go(kind, hook, held):
    def make():
        net = nn.Linear(4, 1, bias=False)
        weight = net.weight if held == "module" else torch.ones(1, 4, requires_grad=True)
        handles = []

        def step(x, y):
            predicted = net(x) if held == "module" else functional.linear(x, weight)
            functional.mse_loss(predicted, y).backward()
            gradient, weight.grad = weight.grad, None
            return weight.detach().clone() if gradient is None else gradient

        come_and_go = {
            4: lambda: handles.append(getattr(weight, kind)(hook)),
            7: lambda: handles.pop().remove(),
        }
        return Loop(step, [weight], come_and_go)

    assert_as_eager(make, pairs(10), replayed=6)
