"""Every optimizer of torch.optim: ten steps, two models, bitwise equal to eager."""

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.parity.models import ConvNet, Matrices, Mlp, TallMatrices, batches, cross_entropy, setup
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
CAPTURES = {"RAdam": 2}
# Their first step fills slots with values of its own: no other is like it, and it is recorded, too.
LATE = ("ASGD", "SGD, momentum", "SGD, dampening", "SGD, nesterov")
PROGRAMS = ("Adam", "Adafactor", "Adagrad", "ASGD", "NAdam", "RMSprop", "RAdam", "SGD")
PROGRAMS += ("SGD, momentum", "SGD, dampening", "SGD, nesterov")


OFTEN = ("Adadelta", "Adafactor", "Adagrad, decay", "Adam, amsgrad", "Adamax", "ASGD, averaging")
OFTEN += ("NAdam, decoupled", "RMSprop, both", "Rprop")
"""Of `make test`, beside `PROGRAMS`: with the settings that add most to a step."""


@pytest.mark.parametrize("name", thinned(ELEMENTWISE, keep=OFTEN))
def test_ten_steps_are_bitwise_eager(name):
    assert_parity(setup(Mlp, ELEMENTWISE[name]), batches(Mlp, 10))


@pytest.mark.parametrize("name", thinned(ELEMENTWISE, keep=["AdamW", "SGD, momentum"]))
def test_ten_steps_of_convolutions_and_norms_are_bitwise_eager(name):
    assert_parity(setup(ConvNet, ELEMENTWISE[name]), batches(ConvNet, 10))


@pytest.mark.parametrize("model", [Matrices, TallMatrices])
@pytest.mark.parametrize("name", thinned(MATRICES, keep=["Muon"]))
def test_ten_steps_of_muon_are_bitwise_eager(name, model):
    assert_parity(setup(model, MATRICES[name]), batches(model, 10))


@pytest.mark.parametrize("name", PROGRAMS)
def test_how_many_programs_ten_steps_need(name):
    captures = CAPTURES.get(name, 1)
    recorded = 2 * captures + (name in LATE)
    with counters.expect(captures=captures, replays=10 - recorded):
        assert_parity(setup(Mlp, ELEMENTWISE[name]), batches(Mlp, 10))


def test_every_optimizer_of_torch_is_here():
    public = {
        name
        for name in dir(optim)
        if isinstance(getattr(optim, name), type)
        and issubclass(getattr(optim, name), optim.Optimizer)
    }
    tested = {name.split(",")[0] for name in (*ELEMENTWISE, *MATRICES)}

    assert public - {"Optimizer", "SparseAdam", "LBFGS"} == tested


@pytest.mark.parametrize("make", [optim.SparseAdam, optim.LBFGS])
def test_an_optimizer_that_cannot_be_static_refuses_with_a_reason(make):
    model = Mlp()
    step = tg.train_step(model, nn.CrossEntropyLoss(), make(model.parameters()))
    with pytest.raises(UnsupportedOptimizer, match=rf"{make.__name__} cannot .*: \w+") as refused:
        step(*batches(Mlp, 1)[0])
    assert "tg.train_step(" in refused.value.where.text


def test_a_differentiable_optimizer_refuses():
    model = Mlp()

    step = tg.train_step(
        model, nn.CrossEntropyLoss(), optim.Adam(model.parameters(), differentiable=True)
    )
    with pytest.raises(UnsupportedOptimizer, match="differentiable"):
        step(*batches(Mlp, 1)[0])


@pytest.mark.parametrize("flags", [{"foreach": True}, {"foreach": False}, {"capturable": False}])
def test_the_branch_that_the_user_asked_for_is_bitwise_eagers(flags):
    def make(parameters):
        return optim.AdamW(parameters, lr=0.05, **flags)

    assert_parity(setup(Mlp, make), batches(Mlp, 6))


@pytest.mark.parametrize(
    "make",
    [
        lambda p: optim.Adam(p, lr=torch.tensor(0.05)),
        lambda p: optim.SGD(p, lr=torch.tensor(0.05)),
        lambda p: optim.AdamW(p, lr=torch.tensor(0.05), foreach=False),
    ],
)
def test_a_learning_rate_in_a_tensor(make):
    assert_parity(setup(Mlp, make), batches(Mlp, 6))


def test_a_parameter_without_a_gradient_stays_as_it_is():
    class Unused(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Linear(2, 2)

    def make():
        model = Unused()
        made = setup(Mlp, lambda _: optim.AdamW(model.parameters(), weight_decay=0.5))()
        return made._replace(model=model)

    graph = assert_parity(make, batches(Mlp, 6))

    assert (
        len(graph._runner.step.optimizers[0].state) == 4
    )  # as in eager: no slots for what has no gradient


def test_float64_and_bfloat16_parameters():
    for dtype in (torch.float64, torch.bfloat16):

        def make(dtype=dtype):
            model = Mlp().to(dtype)
            return setup(Mlp, lambda _: optim.AdamW(model.parameters(), lr=0.05))()._replace(
                model=model, loss=lambda m, x, y: cross_entropy(m, x.to(dtype), y)
            )

        assert_parity(make, batches(Mlp, 6))
