"""Transforms of torch.func, custom functions, parametrizations, steps in steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap
from torch.nn import functional
from torch.nn.utils import parametrizations, prune

import torchgraph as tg
from tests.cases.plays import Play, net, pairs, sgd, singles, trains
from tests.cases.table import Table
from torchgraph.errors import NestedGraph

case = Table("step graph", says=None)


def draws(draw, **more: Any):
    """A step that draws, and draws before and after each call outside of it."""
    more.setdefault("calls", singles())
    return Play(draw, **more)


# --- transforms -----------------------------------------------------------------------------------


@case
def functional_calls():
    model = net()
    weights = {name: one.detach().clone() for name, one in model.named_parameters()}

    def step(x, y):
        def loss(weights):
            return functional.mse_loss(functional_call(model, weights, x), y)

        grads = grad(loss)(weights)
        for name, one in grads.items():
            weights[name] = weights[name] - 0.1 * one
        return loss(weights)

    return Play(step, [weights])


@case
def gradients_per_sample():
    model = net()

    def step(x, y):
        weights = dict(model.named_parameters())

        def loss(weights, x, y):
            return functional.mse_loss(functional_call(model, weights, x[None]), y[None])

        return vmap(grad(loss), (None, 0, 0))(weights, x, y)

    return Play(step, [model])


case.rows(
    {
        "dropout_in_a_vmap": lambda: draws(
            lambda x: vmap(functional.dropout, randomness="different")(x)
        ),
    },
)


@case
def jacobians():
    model = net()
    return draws(lambda x: (jacrev(model)(x[0]), hessian(lambda v: model(v).sum())(x[0])))


@case
def forward_mode():
    model = net()
    return draws(lambda x: jvp(model, (x,), (torch.ones_like(x),)))


@case(slow=True)
def maml():
    model = net()
    optimizer = sgd(model)

    def step(x, y):
        weights = dict(model.named_parameters())
        inner = functional.mse_loss(functional_call(model, weights, x), y)
        grads = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        fast = {
            name: one - 0.1 * by for (name, one), by in zip(weights.items(), grads, strict=True)
        }
        loss = functional.mse_loss(functional_call(model, fast, x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return Play(step, [model, optimizer])


# --- functions of one's own -----------------------------------------------------------------------


class Reverse(Function):
    """Gradients go back with another sign."""

    factor = 1.0

    @staticmethod
    def forward(ctx, x, by) -> Any:
        ctx.by = by
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad) -> Any:
        return -grad * ctx.by * Reverse.factor, None


@case(slow=True)
def a_function_of_ones_own():
    model, held = net(), SimpleNamespace(by=1.0)
    loss = lambda x, y: functional.mse_loss(model[2](Reverse.apply(model[0](x), held.by)), y)  # noqa: E731
    return trains(model, loss, before={5: lambda: setattr(held, "by", 3.0)})


@case
def a_number_that_its_backward_reads():
    model = net()
    loss = lambda x, y: functional.mse_loss(model[2](Reverse.apply(model[0](x), 1.0)), y)  # noqa: E731
    change = {
        0: lambda: setattr(Reverse, "factor", 1.0),
        5: lambda: setattr(Reverse, "factor", 3.0),
    }
    return trains(model, loss, before=change)


@case
def straight_through():
    model = net()

    def loss(x, y):
        hidden = model[0](x)
        hard = (hidden > 0).float()
        return functional.mse_loss(model[2](hidden + (hard - hidden).detach()), y)

    return trains(model, loss)


# --- modules --------------------------------------------------------------------------------------


@case
def spectral_norm():
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 2))
    return trains(model, before={5: model.eval, 7: model.train}, calls=pairs(13))


@case
def orthogonal():
    return trains(nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 4)), nn.Linear(4, 2)))


@case
def pruned_later():
    model = net()
    change = {
        5: lambda: prune.l1_unstructured(model[0], "weight", 0.5),
        8: lambda: prune.remove(model[0], "weight"),
    }
    return trains(model, before=change, calls=pairs(12))


@case
def lazy_modules():
    model = nn.Sequential(nn.LazyLinear(3), nn.Tanh(), nn.LazyLinear(2))
    return Play(lambda x: model(x), [lambda: len(list(model.parameters()))], calls=singles())


@case(forms="step")
def a_script_changed():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = 1.0

        def forward(self, x):
            return x * self.scale

    model = torch.jit.script(Scaled())
    return Play(lambda x: model(x), [], {5: lambda: setattr(model, "scale", 2.0)}, singles())


@case
def a_recurrent_network_with_a_state():
    model, held = nn.LSTM(4, 3, batch_first=True), SimpleNamespace(state=None)

    def step(x):
        out, state = model(x[None], held.state)
        held.state = tuple(one.detach() for one in state)
        return out

    return Play(step, [model, held], {6: lambda: setattr(held, "state", None)}, singles(12))


# --- steps in steps -------------------------------------------------------------------------------


@case(refused=NestedGraph)
def a_step_in_a_step():
    inner = tg.step(lambda x: x * 2)
    return Play(lambda x: inner(x) + 1, calls=singles())


@case
def a_generator_inside():
    def halves(x):
        while len(x) > 1:
            x = x[: len(x) // 2]
            yield x

    return Play(lambda x: sum(one.sum() for one in halves(x)), calls=singles())


@case(refused=NestedGraph)
def a_graph_in_a_step():
    class Inner(tg.Graph):
        def build(self, x):
            return x * 2

    inner = Inner()
    return Play(lambda x: inner(x) + 1, calls=singles())


@pytest.mark.parametrize("case", case)
def test_transforms(case):
    case.check()
