"""Parameters, buffers, gradients and modes that are changed between calls, or in the step."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.cases.plays import Play, adam, net, pairs, sgd, singles, trains
from tests.cases.table import Table
from torchgraph.errors import SharedMemory

case = Table("step graph", says=None)


# --- between calls ----------------------------------------------------------------------------


@case
def data_of_another_tensor():
    model = net()
    return trains(model, before={5: lambda: setattr(model[0].weight, "data", torch.ones(3, 4))})


@case
def data_with_other_strides():
    model = net()
    other = torch.randn(4, 3).t()
    return trains(model, before={5: lambda: setattr(model[0].weight, "data", other)})


@case(refused=SharedMemory)
def data_swapped_in_the_step():
    model = net()
    spare = [torch.randn(3, 4), torch.randn(3, 4)]

    def body(x, y):
        out = model(x).sum()
        model[0].weight.data, spare[0] = spare[0], model[0].weight.data
        return out

    return Play(body, [model, spare])


@case
def parameter_replaced_but_not_in_the_optimizer():
    model = net()

    def replace():
        model[0].weight = nn.Parameter(torch.ones(3, 4))

    return trains(model, before={5: replace})


@case
def weights_tied_later():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 2))

    def tie():
        model[2].weight = model[0].weight

    return trains(model, before={5: tie})


@case
def weights_untied_later():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 2))
    model[2].weight = model[0].weight

    def untie():
        model[2].weight = nn.Parameter(model[0].weight.detach().clone())

    return trains(model, before={5: untie})


@case
def tensors_swapped():
    model, other = net(), nn.Parameter(torch.ones(3, 4))
    return trains(
        model, before={5: lambda: torch.utils.swap_tensors(model[0].weight, other)}, watched=[other]
    )


@case
def one_layer_moved_to_bfloat16():
    model = net()

    def loss(x, y):
        return functional.mse_loss(model[2](model[1](model[0](x)).to(model[2].bias.dtype)), y)

    return trains(model, loss, before={5: lambda: model[2].bfloat16()})


@case
def requires_grad_toggled():
    model = net()
    change = {5: lambda: model[0].requires_grad_(False), 7: lambda: model[0].requires_grad_(True)}
    return trains(model, before=change, calls=pairs(11))


@case(forms="step")
def requires_grad_of_a_bias_in_a_list():
    weights = [torch.randn(4, 2), torch.randn(2)]

    def body(x, y):
        loss = (x @ weights[0] + weights[1] - y).square().mean()
        if loss.requires_grad:
            loss.backward()
        return loss

    change = {3: lambda: weights[0].requires_grad_(), 6: lambda: weights[1].requires_grad_()}
    return Play(body, [weights], change, calls=pairs(12))


@case
def a_buffer_reassigned_inside():
    model = net()
    model.register_buffer("average", torch.zeros(2))

    def loss(x, y):
        out = model(x)
        model.average = 0.9 * model.average + 0.1 * out.detach().mean(0)
        return (out - y - model.average).square().mean()

    def reset():
        model.average = torch.ones(2)

    return trains(model, loss, before={6: reset})


class Remembers(nn.Module):
    """Keeps what it had of the batch before, which has no shape until then."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 2)
        self.register_buffer("kept", torch.zeros(0))

    def forward(self, x):
        found = self.inner(x)
        before = self.kept if self.kept.shape == found.shape else torch.zeros_like(found)
        self.kept = (before * 0.9 + found).detach()
        return before * 0.9 + found


@case(serves=True, says="")
def a_buffer_that_takes_the_shape_of_the_first_batch():
    model = Remembers()
    return trains(model, optimizer=adam(model))


@case(forms="step", serves=True, says="")
def a_parameter_laid_anew_in_the_first_step():
    model = net()

    def loss(x, y):
        weight = model[0].weight
        weight.data = (weight.data.t().contiguous() * 1.0).t()
        return functional.mse_loss(model(x), y)

    return trains(model, loss, adam(model))


@case
def a_buffer_that_becomes_none():
    model = nn.BatchNorm1d(4)

    def change():
        model.running_mean = model.running_var = None

    return Play(lambda x: model(x), [model], {5: change, 6: model.eval}, calls=singles())


@case
def buffers_that_rotate():
    model = nn.Module()
    for name in "abc":
        model.register_buffer(name, torch.randn(4))

    def body(x):
        model.a, model.b, model.c = model.b, model.c, model.a + x.mean(0)
        return model.a * x

    return Play(body, [model], calls=singles())


@case
def a_buffer_that_becomes_a_view_of_another():
    model = nn.Module()
    model.register_buffer("a", torch.randn(6, 4))
    model.register_buffer("b", torch.randn(4))

    def body(x):
        model.a.mul_(0.9)
        model.b.add_(x.mean(0))
        return model.a.sum() + model.b.sum()

    def change():
        model.b = model.a[2]

    return Play(body, [model], {5: change}, calls=singles())


@case
def train_and_eval_of_one_submodule():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4), nn.Linear(4, 2))
    return trains(model, before={5: model[2].eval, 7: model[1].eval}, calls=pairs(12))


@case
def training_set_as_an_attribute_in_the_step():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 2))

    def loss(x, y):
        model.eval()
        with torch.no_grad():
            target = model(x)
        model.train()
        return (model(x) - target + y).square().mean()

    return trains(model, loss, before={5: model.eval})


# --- gradients ----------------------------------------------------------------------------------


def adds_up(model, changes):
    """What ``backward`` adds to the gradients is never dropped by the step."""
    optimizer = sgd(model)

    def body(x, y):
        functional.mse_loss(model(x), y).backward()
        optimizer.step()

    before = {number: partial(change, optimizer) for number, change in changes.items()}
    return Play(body, [model, optimizer], before, pairs(12))


@case
def grad_set_by_hand_between():
    model = net()

    def change(_):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)

    return adds_up(model, {4: change, 6: torch.optim.Optimizer.zero_grad})


def grad_is(model, give):
    """The gradient of the first weight is replaced."""
    return adds_up(model, {5: lambda _: setattr(model[0].weight, "grad", give(model))})


@case
def grad_is_one_tensor_for_two():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    return grad_is(model, lambda model: model[1].weight.grad)


case.rows(
    {
        "grad_that_is_the_parameter_itself": lambda: grad_is(
            net(), lambda model: model[0].weight.detach()
        ),
        "grad_with_other_strides": lambda: grad_is(net(), lambda model: torch.randn(4, 3).t()),
    },
)


@case
def grad_kept_by_the_caller():
    model, kept = net(), []

    def keep():
        kept.append(model[0].weight.grad)

    return trains(model, before=dict.fromkeys(range(3, 9), keep), watched=[kept])


@case(forms="step")
def grad_accumulates_without_zero_grad():
    model, kept = net(), []

    def body(x, y):
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    def keep():
        kept.append(model[0].weight.grad)

    zero = {6: partial(model.zero_grad, set_to_none=False), 9: model.zero_grad}
    return Play(body, [model, kept], {**dict.fromkeys((3, 4, 5, 8), keep), **zero}, pairs(12))


@case(forms="step")
def grads_of_leaves_outside_of_modules():
    leaf = torch.randn(4, requires_grad=True)

    def body(x):
        (x * leaf).sum().backward()
        with torch.no_grad():
            leaf.sub_(leaf.grad, alpha=0.1)

    def change():
        leaf.grad = None

    return Play(body, [leaf], {5: change}, singles())


@pytest.mark.parametrize("case", case)
def test_states(case):
    case.check()
