"""What the user changes between calls is noticed: modes, parameters, structure, dtypes."""

import pytest
import torch
from torch import nn

from tests.cases.plays import Play, moves
from tests.cases.table import Table
from tests.contract.models import Net, adam, beside_eager, data, made

table = Table("graph")


def toggled(number, model, _):
    model.train(number % 2 == 0)


def norm_toggled(number, model, _):
    model.norm.train(number % 2 == 0)


def frozen(number, model, _):
    model.first.requires_grad_(number not in (2, 3))


def replaced(number, model, optimizer):
    if number == 3:
        optimizer.state.pop(model.second.weight)
        model.second.weight = nn.Parameter(torch.ones(2, 6))
        optimizer.param_groups[0]["params"] = list(model.parameters())


def unknown(number, model, _, old=[]):  # noqa: B006 - kept from call to call
    if number == 4:
        old[:] = [model.second.bias]
        model.second.bias = nn.Parameter(torch.full((2,), 3.0))
    elif number == 6:
        model.second.bias = old[0]  # as it was: it lay nowhere, and got no gradient


def widened(number, model, _):
    model.to(torch.float64 if number > 3 else torch.float32)


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize("change", [toggled, norm_toggled, frozen, replaced, unknown, widened])
def test_training_goes_on(change):
    batches = [x.double() if change is widened and n > 3 else x for n, x in enumerate(data(8))]
    kind = momentum if change is widened else adam  # whose state eager itself cannot widen
    assert beside_eager(batches=batches, before=change, optimizer=kind).replayed > 1


def net() -> Net:
    return made()[0].eval()


@table(recorded=2)
def toggled_back():
    model = Net()
    return moves(
        model,
        model,
        number=6,
        **{f"before{n}": lambda n=n: model.train(n % 2 == 0) for n in range(6)},
    )


@table()
def a_buffer_replaced_and_its_module():
    model = net()
    return moves(
        model,
        model,
        before4=lambda: setattr(model.norm, "running_mean", torch.ones(6)),
        before7=lambda: setattr(model, "norm", nn.Identity()),
        number=10,
    )


@table()
def sub_modules_replaced_added_and_taken_away():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    return moves(
        model,
        model,
        before2=lambda: model.__setitem__(1, nn.ReLU()),
        before4=lambda: model.append(nn.Linear(4, 2)),
        before6=lambda: model.__delitem__(1),
        number=9,
    )


@table()
def another_dtype_for_the_same_inputs():
    model = net()
    kinds = [torch.float32] * 2 + [torch.float64, torch.bfloat16] * 2 + [torch.float32] * 3
    return Play(
        lambda x: model(x.to(model.first.weight.dtype)),
        [model],
        before={n: lambda kind=kind: model.to(kind) for n, kind in enumerate(kinds)},
        calls=[(x,) for x in data(9)],
    )


@table()
def another_layout_and_shape_in_place():
    model = nn.Linear(4, 4)

    def narrow():
        model.weight.data, model.bias.data = torch.ones(2, 4), torch.ones(2)

    return moves(
        model,
        model,
        before3=lambda: setattr(model.weight, "data", torch.arange(16.0).view(4, 4).t()),
        before6=narrow,
        number=9,
    )


@pytest.mark.parametrize("case", table)
def test_an_evaluation_is_eagers(case):
    case.check()
