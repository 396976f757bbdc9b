"""Random draws, generators, transforms of torch.func, custom functions, nested steps, threads."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.cases.plays import Play, net, singles, trains
from tests.cases.table import Table
from torchgraph.errors import NoProgram, RandomStateTouched

case = Table("step graph", says=None)


def draws(draw, **more: Any):
    """A step that draws, and draws before and after each call outside of it."""
    more.setdefault("calls", singles())
    return Play(draw, **more)


# --- draws ----------------------------------------------------------------------------------------


@case
def dropout_and_draws_outside():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    return trains(model, before=dict.fromkeys(range(9), lambda: torch.randn(3)))


@case
def all_kinds_of_draws():
    def step(x):
        weights = x.abs().sum(0)
        return (
            torch.rand(3),
            torch.randint(0, 9, (4,)),
            torch.randperm(6),
            torch.multinomial(weights, 3),
            torch.bernoulli(torch.sigmoid(x)),
            torch.normal(x, x.abs() + 1),
            torch.poisson(x.abs()),
            torch.empty(3).exponential_(),
            torch.empty(3).cauchy_(),
            torch.empty(3).log_normal_(),
            torch.empty(3).geometric_(0.4),
            functional.rrelu(x, training=True),
            functional.gumbel_softmax(x),
        )

    return draws(step)


@case
def draws_of_a_size_of_data():
    calls = [(torch.ones(3 + (n > 5)),) for n in range(12)]
    return draws(lambda x: torch.randn(int(x.sum())).sum(), calls=calls)


@case
def a_branch_by_a_draw():
    def step(x):
        return x * 2 if torch.rand(()) < 0.5 else x + 1

    return draws(step, calls=singles(16))


@case
def stochastic_depth():
    model = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def step(x):
        for layer in model:
            if torch.rand(1).item() < 0.8:
                x = x + layer(x)
        return x

    return draws(step, watched=[model], calls=singles(20))


@case(refused=NoProgram)
def a_generator_of_ones_own():
    generator = torch.Generator().manual_seed(5)
    return draws(lambda x: x + torch.rand(4, generator=generator), watched=[generator])


@case(refused=NoProgram)
def a_generator_as_an_argument():
    generator = torch.Generator().manual_seed(5)
    calls = [(x, generator) for (x,) in singles()]
    return Play(lambda x, generator: x + torch.rand(4, generator=generator), calls=calls)


case.rows(
    {
        "seeded_between": lambda: draws(
            lambda x: x + torch.randn(4),
            before={5: lambda: torch.manual_seed(5), 7: lambda: torch.manual_seed(5)},
        ),
        "the_default_generator_by_name": lambda: draws(
            lambda x: x + torch.rand(4, generator=torch.default_generator)
        ),
    },
)


@case(refused=RandomStateTouched)
def seeded_inside():
    def step(x):
        torch.manual_seed(5)
        return x + torch.rand(4)

    return draws(step)


@case(refused=NoProgram)
def forked():
    def step(x):
        with torch.random.fork_rng():
            torch.manual_seed(5)
            noise = torch.rand(4)
        return x + noise + torch.rand(4)

    return draws(step)


@case
def the_state_saved_and_restored():
    def step(x):
        state = torch.get_rng_state()
        first = torch.rand(4)
        torch.set_rng_state(state)
        return x + first - torch.rand(4)

    return draws(step)


@case(refused=NoProgram)
def the_state_of_another_time():
    state = torch.get_rng_state()

    def step(x):
        torch.set_rng_state(state)
        return x + torch.rand(4)

    return draws(step)


@case
def checkpointed_dropout():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    loss = lambda x, y: functional.mse_loss(checkpoint(model, x, use_reentrant=False), y)  # noqa: E731
    return trains(model, loss)


@case
def checkpointed_by_the_old_way():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))

    def loss(x, y):
        return functional.mse_loss(
            checkpoint(model, x.clone().requires_grad_(), use_reentrant=True), y
        )

    return trains(model, loss)


@case
def distributions():
    def step(x):
        normal = torch.distributions.Normal(x.mean(0), x.std(0))
        found = torch.distributions.Categorical(logits=x)
        action = found.sample()
        beta = torch.distributions.Beta(x.abs() + 0.5, x.abs() + 0.5)
        return normal.rsample(), found.log_prob(action), found.entropy(), beta.rsample()

    return draws(step)


@case(refused=RandomStateTouched)
def drawn_by_another_thread():
    def step(x):
        found = []
        thread = threading.Thread(target=lambda: found.append(torch.rand(4)))
        thread.start()
        thread.join()
        return x + found[0]

    return draws(step)


@case
def computed_by_another_thread():
    model = net()

    def step(x):
        found = []
        thread = threading.Thread(target=lambda: found.append(model(x)))
        thread.start()
        thread.join()
        return found[0] * 2

    return draws(step)


@pytest.mark.parametrize("case", case)
def test_randomness(case):
    case.check()
