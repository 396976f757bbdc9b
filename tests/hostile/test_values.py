"""Values of many kinds that Python reads, and settings of modules."""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.hostile.kit import Cases
from tests.hostile.plays import (
    Play,
    net,
    reads,
    singles,
    trains,
)

case = Cases()
TABLE = {"scale": [1.0, 2.0]}


# --- kinds of values ------------------------------------------------------------------------------


@case
def an_enum_chosen():
    class Mode(enum.Enum):
        SUM = 1
        MEAN = 2

    config = SimpleNamespace(mode=Mode.SUM)

    def step(x):
        return x.sum() if config.mode is Mode.SUM else x.mean()

    return Play(step, before={5: lambda: setattr(config, "mode", Mode.MEAN)}, calls=singles())


@case
def flags_combined():
    class Flag(enum.Flag):
        A = enum.auto()
        B = enum.auto()

    config = SimpleNamespace(flags=Flag.A)

    def step(x):
        return x * 2 if Flag.B in config.flags else x + 1

    return Play(
        step, before={5: lambda: setattr(config, "flags", Flag.A | Flag.B)}, calls=singles()
    )


@case
def a_nested_dataclass():
    @dataclass
    class Inner:
        values: list = field(default_factory=lambda: [1.0])

    @dataclass
    class Outer:
        inner: Inner = field(default_factory=Inner)

    config = Outer()
    changes = {
        5: lambda: config.inner.values.append(2.0),
        7: lambda: setattr(config, "inner", Inner([7.0])),
    }
    return Play(lambda x: x * sum(config.inner.values), before=changes, calls=singles(12))


@case
def a_frozen_dataclass_replaced():
    @dataclass(frozen=True)
    class Config:
        scale: float = 1.0

    held = [Config()]
    return reads(lambda: held[0].scale, lambda: held.__setitem__(0, Config(2.0)))


@case
def true_and_one():
    config = SimpleNamespace(flag=True)

    def step(x):
        return x * 2 if config.flag is True else x * 3

    return Play(step, before={5: lambda: setattr(config, "flag", 1)}, calls=singles())


@case
def zero_and_minus_zero():
    config = SimpleNamespace(zero=0.0)
    return Play(
        lambda x: 1 / (x * 0 + config.zero).abs().mul(-1).add(config.zero),
        before={5: lambda: setattr(config, "zero", -0.0)},
        calls=singles(),
    )


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
def an_int_that_becomes_a_float():
    config = SimpleNamespace(by=2)
    calls = [(torch.arange(1, 5),) for _ in range(9)]
    return Play(
        lambda x: x * config.by, before={5: lambda: setattr(config, "by", 2.0)}, calls=calls
    )


@case
def nan_in_a_config():
    config = SimpleNamespace(fill=float("nan"))
    change = {6: lambda: setattr(config, "fill", 1.0)}
    return Play(lambda x: x + config.fill, before=change, calls=singles())


@case
def a_huge_integer():
    config = SimpleNamespace(seed=2**70)
    return reads(lambda: config.seed % 7, lambda: setattr(config, "seed", 2**70 + 1))


@case
def a_subclass_of_float():
    class Rate(float):
        factor = 1.0

        def value(self):
            return float(self) * self.factor

    rate = Rate(2.0)
    return reads(lambda: rate.value(), lambda: setattr(rate, "factor", 3.0))


@case
def the_recursion_limit():
    return Play(lambda x: x * (1.0 if sys.getrecursionlimit() else 2.0), calls=singles())


@case
def a_label_smoothing_attribute():
    criterion = nn.CrossEntropyLoss()
    model = net()
    targets = torch.tensor([0, 1, 0, 1, 1])
    change = {5: lambda: setattr(criterion, "label_smoothing", 0.2)}
    return trains(model, lambda x, y: criterion(model(x), targets), before=change)


@case
def a_dropout_probability():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    changes = {5: lambda: setattr(model[1], "p", 0.1), 7: lambda: setattr(model[1], "p", 0.0)}
    return trains(model, before=changes)


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


@case
def functional_flags():
    return Play(
        lambda x: functional.dropout(x, 0.5, training=TABLE["scale"][0] > 1),
        before={
            0: lambda: TABLE.update(scale=[1.0]),
            5: lambda: TABLE["scale"].__setitem__(0, 2.0),
        },
        calls=singles(),
    )


@pytest.mark.parametrize("case", case)
def test_values(case):
    case.check()
