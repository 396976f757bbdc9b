"""Random draws: the same numbers in the same order as eager, whatever else happens."""

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.cases.plays import Play, adam, singles
from tests.cases.table import Table
from tests.contract.models import Function, Net
from torchgraph.errors import RandomStateTouched

case = Table(fallback="eager")


@case(forms="graph", served=7)
def many_kinds_of_draws_in_order():
    def step(x):
        a = torch.rand(3)
        b = torch.randn_like(x)
        torch.rand(7)  # whose value nobody uses
        c = torch.randint(10, (3,))
        d = torch.bernoulli(torch.full((3,), 0.5))
        e = torch.randperm(5)
        f = torch.empty(3).uniform_(-1, 1)
        g = torch.empty(3).normal_(0, 2)
        h = torch.multinomial(torch.ones(4), 2)
        i = torch.empty(3).exponential_()
        j = nn.functional.dropout(x, 0.3)
        k = torch.rand(3)
        return a, b, c, d, e, f, g, h, i, j, k

    return Play(step, calls=singles())


def checkpointed(use_reentrant: bool, preserve: bool) -> Play:
    """With dropout inside."""
    model = Net()
    optimizer = adam(model)

    def step(x):
        optimizer.zero_grad()
        hidden = checkpoint(
            lambda x: model.drop(model.first(model.drop(x))),
            x.clone().requires_grad_(),
            use_reentrant=use_reentrant,
            preserve_rng_state=preserve,
        )
        loss = model.drop(hidden).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return Play(step, [model, optimizer], calls=singles(5))


case.rows(
    {
        f"checkpointed_{use_reentrant}_{preserve}": partial(checkpointed, use_reentrant, preserve)
        for use_reentrant in (False, True)
        for preserve in (False, True)
    },
    forms="graph",
    least=2,
)


def repeated(kind: type[nn.Module]) -> Play:
    """Memory that a repeated draw fills."""
    drop, weight = kind(0.3), torch.ones(3, 4, requires_grad=True)

    def step(x):
        hidden = checkpoint(drop, x * weight, use_reentrant=False)
        return torch.autograd.grad(hidden.square().sum(), weight)[0]

    return Play(step, [weight], calls=singles(5, 3, 4))


case.rows(
    {one.__name__: partial(repeated, one) for one in (nn.AlphaDropout, nn.FeatureAlphaDropout)},
    forms="graph",
    least=3,
)


@case(forms="graph", least=3)
def draws_after_a_state_that_build_got():
    def step(x):
        state = torch.get_rng_state()
        first = torch.rand(3).mul_(2)
        torch.set_rng_state(state)
        return x.sum() * first, torch.rand(3), torch.bernoulli(torch.full((4,), 0.5))

    return Play(step, calls=singles(5))


@pytest.mark.parametrize("case", case)
def test_draws(case):
    case.check()


def set_back(state: torch.Tensor, after: Callable[[], Any]) -> torch.Tensor:
    before = torch.get_rng_state()
    y = torch.rand(3)
    torch.set_rng_state(before)
    return y + after()


def unseen(state: torch.Tensor) -> torch.Tensor:
    before = torch.default_generator.get_state()
    y = torch.rand(3)
    torch.default_generator.set_state(before)
    return y + torch.rand(3)


REFUSED: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "seeds": (lambda state: (torch.manual_seed(0), torch.rand(2)), "seeds torch"),
    "of Python": (lambda state: random.random(), "draws"),
    "of NumPy": (lambda state: np.random.rand(), "draws"),
    "unseen": (unseen, "torch"),
    "foreign": (lambda state: torch.set_rng_state(state), "did not get"),
    "another draw": (lambda state: set_back(state, lambda: torch.rand(1)), "other numbers"),
    "left behind": (lambda state: set_back(state, lambda: 0), "earlier state"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_program_cannot_repeat_is_refused(name):
    touch, said = REFUSED[name]
    state, python = torch.get_rng_state(), random.getstate()
    with pytest.raises(RandomStateTouched, match=said):
        Function(lambda x: (touch(state), x)[1])(torch.ones(3))
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python


@pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")
def test_another_thread_has_the_real_states():
    found = []

    def elsewhere():
        found.append(torch.get_rng_state())
        torch.set_rng_state(found[0])

    def function(x):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return x + torch.rand(3)

    expected = torch.get_rng_state()
    Function(function)(torch.ones(3))
    assert torch.equal(found[0], expected)


def test_a_build_that_raised_leaves_the_generators_alone():
    def function(x):
        torch.rand(3)
        raise ValueError("mine")

    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="mine"):
        Function(function)(torch.ones(1))
    assert torch.equal(torch.get_rng_state(), before)
