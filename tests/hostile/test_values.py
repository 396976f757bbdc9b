"""Values of many kinds that Python reads, and settings of modules."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.cases.plays import Play, net, reads, singles, trains
from tests.cases.table import Table

case = Table("step graph", says=None)
# --- kinds of values ------------------------------------------------------------------------------


@case
def true_and_one():
    config = SimpleNamespace(flag=True)

    def step(x):
        return x * 2 if config.flag is True else x * 3

    return Play(step, before={5: lambda: setattr(config, "flag", 1)}, calls=singles())


@case
def a_minus_zero_alone():
    config = SimpleNamespace(zero=0.0)
    change = {5: lambda: setattr(config, "zero", -0.0)}
    return Play(
        lambda x: torch.full((2,), config.zero) + x.sum() * -0.0,
        before=change,
        calls=[(torch.ones(3),)] * 9,
    )


@case
def nan_in_a_config():
    config = SimpleNamespace(fill=float("nan"))
    change = {6: lambda: setattr(config, "fill", 1.0)}
    return Play(lambda x: x + config.fill, before=change, calls=singles())


@case
def a_subclass_of_float():
    class Rate(float):
        factor = 1.0

        def value(self):
            return float(self) * self.factor

    rate = Rate(2.0)
    return reads(lambda: rate.value(), lambda: setattr(rate, "factor", 3.0))


@case
def a_label_smoothing_attribute():
    criterion = nn.CrossEntropyLoss()
    model = net()
    targets = torch.tensor([0, 1, 0, 1, 1])
    change = {5: lambda: setattr(criterion, "label_smoothing", 0.2)}
    return trains(model, lambda x, y: criterion(model(x), targets), before=change)


@case
def a_momentum_of_a_norm():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    changes = {
        5: lambda: setattr(model[1], "momentum", None),
        7: lambda: setattr(model[1], "eps", 1.0),
    }
    return trains(model, before=changes)


@case
def the_stride_of_a_convolution():
    model = nn.Conv1d(5, 2, 2)
    return Play(lambda x: model(x), [model], {5: lambda: setattr(model, "stride", (2,))}, singles())


@case
def the_padding_index_and_norm_of_an_embedding():
    model = nn.Embedding(6, 3)
    calls = [(torch.randint(0, 6, (4,)),) for _ in range(9)]
    return Play(lambda x: model(x), [model], {5: lambda: setattr(model, "max_norm", 0.5)}, calls)


@pytest.mark.parametrize("case", case)
def test_values(case):
    case.check()
