"""Seeding in a step that draws nothing after it: what others draw later is as after eager."""

import random
import warnings

import numpy as np
import pytest
import torch

import torchgraph as tg

STATE = torch.Generator().manual_seed(7).get_state()
bound = torch.manual_seed


def again(model):
    torch.manual_seed(torch.initial_seed())


def forked(model):
    with torch.random.fork_rng():
        torch.manual_seed(7)


def of_the_module(model):
    model.generator.bit_generator.state = np.random.default_rng(3).bit_generator.state


SEEDS = {
    "seed": lambda model: torch.manual_seed(7),
    "the same seed": again,
    "bound": lambda model: bound(7),
    "state": lambda model: torch.set_rng_state(STATE),
    "generator": lambda model: torch.default_generator.manual_seed(7),
    "generator's state": lambda model: torch.default_generator.set_state(STATE),
    "forked": forked,
    "random": lambda model: random.seed(7),
    "numpy": lambda model: np.random.seed(7),
    "a module's": of_the_module,
    "drawn from": lambda model: model.generator.random(),
}


def drawn(seed, *, graph):
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    model = torch.nn.Linear(3, 3)
    model.generator = np.random.default_rng(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        seed(model)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    if graph:
        step = tg.step(step)
        step.config.set_backend("aten")
        step.config.set_fallback("eager")
    torch.manual_seed(7)
    found = []
    for n in range(6):
        found.append(step(torch.ones(2, 3)).item())
        if n > 2:
            own = model.generator.random()
            found.append((torch.randn(()).item(), random.random(), np.random.rand(), own))
    return found


@pytest.mark.parametrize("seed", SEEDS.values(), ids=SEEDS)
def test_draws_after_the_step(seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tg.errors.EagerWarning)
        assert drawn(seed, graph=True) == drawn(seed, graph=False)
