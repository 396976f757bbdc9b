"""Results, gradients and states of a user's tensor class: of eager's class in every call."""

import pytest
import torch
from torch import nn

import torchgraph as tg


class Tagged(torch.Tensor):
    """A class without a dispatch of its own, as fastai's TensorBase."""


def _updated(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def _as_subclass(model, optimizer):
    def step(x):
        loss = _updated(optimizer, model(x).square().mean())
        return loss, loss.as_subclass(Tagged), {"made": [loss.as_subclass(Tagged) * 2]}

    return step, torch.Tensor, lambda: ()


def _without_the_class(model, optimizer):
    def step(x):
        hidden = model(x.as_subclass(torch.Tensor))
        return _updated(optimizer, hidden.square().mean()), hidden.detach(), x + 1

    return step, Tagged, lambda: ()


def _of_argument(model, optimizer):
    def step(x):
        hidden = model(x)
        return _updated(optimizer, hidden.square().mean()), hidden.detach()

    return step, Tagged, lambda: [parameter.grad for parameter in model.parameters()]


def _gradients(model, optimizer):
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        for parameter in model.parameters():
            parameter.grad = parameter.grad.as_subclass(Tagged)
        optimizer.step()
        return loss

    return step, torch.Tensor, lambda: [parameter.grad for parameter in model.parameters()]


def _attribute(model, optimizer):
    model.last = None

    def step(x):
        model.last = _updated(optimizer, model(x).square().mean()).as_subclass(Tagged)
        return model.last

    return step, torch.Tensor, lambda: [model.last]


def _parameter_as_attribute(model, optimizer):
    kept = {}

    def step(x):
        kept["last"] = nn.Parameter(_updated(optimizer, model(x).square().mean()))

    return step, torch.Tensor, lambda: [kept["last"]]


def _list(model, optimizer):
    losses = []

    def step(x):
        losses.append(_updated(optimizer, model(x).square().mean()).as_subclass(Tagged))

    return step, torch.Tensor, lambda: list(losses)


def _flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    held = value.values() if isinstance(value, dict) else value
    return [one for item in held or () for one in _flat(item)]


def _run(make, graphed):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    step, kind, state = make(model, optimizer)
    run = tg.step(step) if graphed else step
    found = []
    for _ in range(6):
        returned = run(torch.randn(4, 3).as_subclass(kind))
        found += [(type(one), one.detach().clone()) for one in (*_flat(returned), *_flat(state()))]
    return found


@pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")
@pytest.mark.parametrize(
    "make",
    [
        *(_as_subclass, _without_the_class, _of_argument, _gradients, _attribute),
        *(_parameter_as_attribute, _list),
    ],
)
def test_what_a_step_leaves_is_of_the_class_that_eager_leaves(make):
    for (kind, one), (other, two) in zip(_run(make, False), _run(make, True), strict=True):
        assert kind is other
        assert torch.equal(one, two)
