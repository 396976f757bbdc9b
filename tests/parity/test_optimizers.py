"""Every optimizer of torch.optim: ten steps, two models, bitwise equal to eager."""

from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim.lr_scheduler import ExponentialLR

import torchgraph as tg
from tests.parity.models import (
    ChannelsLast,
    ConvNet,
    Flat,
    Frozen,
    Matrices,
    Mlp,
    TallMatrices,
    Unused,
    batches,
    of_dtype,
    setup,
)
from tests.support import thinned
from torchgraph.errors import UnsupportedOptimizer
from torchgraph.testing import assert_parity, counters

ELEMENTWISE = {
    "Adadelta": lambda p: optim.Adadelta(p, lr=0.5),
    "Adadelta, decay": lambda p: optim.Adadelta(p, lr=0.5, weight_decay=0.1, maximize=True),
    "Adafactor": lambda p: optim.Adafactor(p, lr=0.05),
    "Adafactor, decay": lambda p: optim.Adafactor(p, lr=0.05, weight_decay=0.1, eps=(1e-30, 1e-2)),
    "Adafactor, maximize": lambda p: optim.Adafactor(p, lr=0.05, maximize=True),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.1),
    "Adagrad, decay": lambda p: optim.Adagrad(
        p, lr=0.1, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.2
    ),
    "Adam": lambda p: optim.Adam(p, lr=0.05),
    "Adam, amsgrad": lambda p: optim.Adam(p, lr=0.05, amsgrad=True, weight_decay=0.1),
    "Adam, maximize": lambda p: optim.Adam(p, lr=0.05, betas=(0.8, 0.95), maximize=True),
    "AdamW": lambda p: optim.AdamW(p, lr=0.05),
    "AdamW, amsgrad": lambda p: optim.AdamW(p, lr=0.05, amsgrad=True, eps=1e-3),
    "Adamax": lambda p: optim.Adamax(p, lr=0.05),
    "Adamax, decay": lambda p: optim.Adamax(p, lr=0.05, weight_decay=0.1, maximize=True),
    "ASGD": lambda p: optim.ASGD(p, lr=0.1),
    "ASGD, averaging": lambda p: optim.ASGD(p, lr=0.1, t0=4.0, weight_decay=0.1, lambd=0.01),
    "NAdam": lambda p: optim.NAdam(p, lr=0.05),
    "NAdam, decay": lambda p: optim.NAdam(p, lr=0.05, weight_decay=0.1),
    "NAdam, decoupled": lambda p: optim.NAdam(
        p, lr=0.05, weight_decay=0.1, decoupled_weight_decay=True
    ),
    "RAdam": lambda p: optim.RAdam(p, lr=0.05),
    "RAdam, decay": lambda p: optim.RAdam(p, lr=0.05, weight_decay=0.1),
    "RAdam, decoupled": lambda p: optim.RAdam(
        p, lr=0.05, weight_decay=0.1, decoupled_weight_decay=True
    ),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01),
    "RMSprop, momentum": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9, weight_decay=0.1),
    "RMSprop, centered": lambda p: optim.RMSprop(p, lr=0.01, centered=True),
    "RMSprop, both": lambda p: optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "Rprop": lambda p: optim.Rprop(p, lr=0.01),
    "Rprop, maximize": lambda p: optim.Rprop(p, lr=0.01, maximize=True),
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD, decay": lambda p: optim.SGD(p, lr=0.1, weight_decay=0.1),
    "SGD, maximize": lambda p: optim.SGD(p, lr=0.1, maximize=True),
    "SGD, momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD, dampening": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.1),
    "SGD, nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, maximize=True),
}
MATRICES = {
    "Muon": lambda p: optim.Muon(p, lr=0.05),
    "Muon, no nesterov": lambda p: optim.Muon(p, lr=0.05, nesterov=False, weight_decay=0.0),
    "Muon, adjusted": lambda p: optim.Muon(
        p, lr=0.05, adjust_lr_fn="match_rms_adamw", momentum=0.8, ns_steps=3
    ),
}

# Programs beyond the first: one for each side of a branch that the optimizer takes on its own
# counters. Each is recorded twice before it serves.
CAPTURES = {"RAdam": 2, "ASGD, averaging": 2}
# Their first step fills slots with values of its own: no other is like it, and it is recorded, too.
LATE = ("ASGD", "SGD, momentum", "SGD, dampening", "SGD, nesterov")
OFTEN = ("Adadelta", "Adafactor", "Adagrad", "Adagrad, decay", "Adam", "Adam, amsgrad", "Adamax")
OFTEN += ("ASGD", "ASGD, averaging", "NAdam", "NAdam, decoupled", "RAdam", "RMSprop", "Rprop")
OFTEN += ("RMSprop, both", "SGD", "SGD, dampening", "SGD, momentum", "SGD, nesterov")
"""Of `make test`: each, with the settings that add most to a step."""


def programs_of(name: str, steps: int) -> dict[str, int]:
    """The programs that so many steps need, and the steps that they serve."""
    captures = CAPTURES.get(name, CAPTURES.get(name.partition(",")[0], 1))
    late = name.startswith(LATE)
    return {"captures": captures, "replays": steps - 2 * captures - late}


@pytest.mark.parametrize("name", thinned(ELEMENTWISE, keep=OFTEN))
def test_ten_steps_are_bitwise_eager(name):
    with counters.expect(**programs_of(name, 10)):
        assert_parity(setup(Mlp, ELEMENTWISE[name]), batches(Mlp, 10))


@pytest.mark.parametrize("name", thinned(ELEMENTWISE, keep=["AdamW", "SGD, momentum"]))
def test_ten_steps_of_convolutions_and_norms_are_bitwise_eager(name):
    assert_parity(setup(ConvNet, ELEMENTWISE[name]), batches(ConvNet, 10))


@pytest.mark.parametrize("model", [Matrices, TallMatrices])
@pytest.mark.parametrize("name", thinned(MATRICES, keep=["Muon"]))
def test_ten_steps_of_muon_are_bitwise_eager(name, model):
    assert_parity(setup(model, MATRICES[name]), batches(model, 10))


def adamw(**settings: Any):
    return lambda parameters: optim.AdamW(parameters, **{"lr": 0.05, **settings})


def fused(kind, **settings: Any):
    return lambda parameters: kind(parameters, **{"lr": 0.05, "fused": True, **settings})


def in_tensors(parameters):
    betas = (torch.tensor(0.8), torch.tensor(0.9))
    return optim.AdamW(parameters, lr=torch.tensor(0.05), betas=betas, fused=True)


def with_an_empty_group(parameters):
    return optim.AdamW([{"params": []}, {"params": parameters, "weight_decay": 0.5}], lr=0.05)


def decayed(optimizer):
    return ExponentialLR(optimizer, 0.9)


FUSED = (optim.Adam, optim.AdamW, optim.SGD, optim.Adagrad)
VARIED = {
    "foreach": setup(Mlp, adamw(foreach=True)),
    "one by one": setup(Mlp, adamw(foreach=False)),
    "not capturable": setup(Mlp, adamw(capturable=False)),
    "rate in a tensor": setup(
        Mlp, lambda p: optim.AdamW(p, lr=torch.tensor(0.05), foreach=False), decayed
    ),
    "rate of Adam in a tensor": setup(Mlp, lambda p: optim.Adam(p, lr=torch.tensor(0.05)), decayed),
    "rate of SGD in a tensor": setup(Mlp, lambda p: optim.SGD(p, lr=torch.tensor(0.05)), decayed),
    "fused, numbers in tensors": setup(Mlp, in_tensors, decayed),
    "no gradient": setup(Unused, adamw(weight_decay=0.5)),
    **{f"fused {one.__name__}, no gradient": setup(Unused, fused(one)) for one in FUSED},
    "frozen, and a group without parameters": setup(Frozen, with_an_empty_group),
    "fused, pieces of one buffer": setup(Flat, fused(optim.AdamW)),
    "fused, gradients in another layout": setup(ChannelsLast, fused(optim.AdamW)),
    "float64": of_dtype(adamw(), torch.float64),
    "bfloat16": of_dtype(adamw(), torch.bfloat16),
    **{
        f"fused {one.__name__}, {dtype}": of_dtype(fused(one), dtype)
        for one in FUSED
        for dtype in (torch.float64, torch.bfloat16, torch.float16)
    },
}
IMAGES = ("frozen, and a group without parameters", "fused, gradients in another layout")
SELDOM = [n for n in VARIED if "float16" in n or n.startswith(("fused Adam,", "fused Adagrad"))]
SELDOM = [name for name in SELDOM if "bfloat16" not in name or "Ada" in name]


@pytest.mark.parametrize("name", thinned(VARIED, keep=VARIED.keys() - SELDOM))
def test_six_steps_are_bitwise_eager(name):
    of_images = name in (
        "frozen, and a group without parameters",
        "fused, gradients in another layout",
    )
    with counters.expect(captures=1):
        graph = assert_parity(VARIED[name], batches(ConvNet if of_images else Mlp, 6))
    if name == "no gradient":  # as in eager: no slots for what has none
        assert len(graph._runner.live.optimizers[0].state) == 4


def test_every_optimizer_of_torch_is_here():
    public = {
        name
        for name in dir(optim)
        if isinstance(getattr(optim, name), type)
        and issubclass(getattr(optim, name), optim.Optimizer)
    }
    tested = {name.split(",")[0] for name in (*ELEMENTWISE, *MATRICES)}

    assert public - {"Optimizer", "SparseAdam", "LBFGS"} == tested


def differentiable(parameters):
    return optim.Adam(parameters, differentiable=True)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (optim.SparseAdam, r"SparseAdam cannot .*: \w+"),
        (optim.LBFGS, r"LBFGS cannot .*: \w+"),
        (differentiable, "differentiable"),
    ],
)
def test_an_optimizer_that_cannot_be_static_refuses_with_a_reason(make, match):
    model = Mlp()
    step = tg.train_step(model, nn.CrossEntropyLoss(), make(model.parameters()))
    with pytest.raises(UnsupportedOptimizer, match=match) as refused:
        step(*batches(Mlp, 1)[0])
    assert "tg.train_step(" in refused.value.where.text
