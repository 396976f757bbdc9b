"""Lion's numbers: against the paper's formulas, and by hand."""

import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings, strategies as st

from tests.optim import reference
from tests.optim.cases import descend
from torchgraph.optim import Lion

VALUES = st.one_of(st.just(0.0), st.floats(1e-3, 4), st.floats(-4, -1e-3))


def zero_or(least, most):
    """No number whose square underflows: each order of a formula ends elsewhere there."""
    return st.one_of(st.just(0.0), st.floats(least, most))


def trained(x, gradients, shape=None, dtype=torch.float64, **options: Any):
    """The values of one parameter after a step for each gradient."""
    shape = shape or (len(x),)
    parameter = torch.nn.Parameter(torch.tensor(x, dtype=dtype).view(shape))
    steps = [[torch.tensor(g, dtype=dtype).view(shape)] for g in gradients]
    descend(Lion([parameter], **options), [parameter], steps)
    return parameter.detach().flatten().tolist()


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_shape_and_setting_is_the_papers(data):
    shape = data.draw(st.lists(st.integers(0, 4), max_size=3).map(tuple))
    size = math.prod(shape)
    vector = st.lists(VALUES, min_size=size, max_size=size)
    x = data.draw(vector)
    gradients = data.draw(st.lists(vector, min_size=1, max_size=5))
    options = {
        "lr": data.draw(zero_or(1e-4, 0.5)),
        "betas": data.draw(st.tuples(zero_or(0.1, 0.99), zero_or(0.1, 0.999))),
        "weight_decay": data.draw(zero_or(1e-3, 1)),
        "maximize": data.draw(st.booleans()),
    }
    expected, smallest = reference.lion(x, gradients, **options)
    assume(smallest > 1e-9)  # else the sign is one of rounding errors

    got = trained(x, gradients, shape, **options)
    together = trained(x, gradients, shape, **options, foreach=True)

    assert got == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert together == got


def test_two_steps_by_hand():
    # c = 0.1 g, then 0.9 * 0.01 * 1 - 0.1 * 0.05 = 0.004: the momentum outweighs the gradient.
    got = trained([2.0, 0.0, 1.0], [[1.0, 0.0, -5.0], [-0.05, 0.0, 1.0]], lr=0.5)

    assert got == [1.0, 0.0, 1.0]


def test_the_decay_is_decoupled():
    got = trained([2.0], [[1e-30]], lr=0.5, weight_decay=0.25)

    assert got == [2.0 - 0.5 * (1 + 0.25 * 2)]


def test_a_nan_stays_in_the_momentum_and_stops_its_element():
    """The sign of NaN is 0 in torch. The docstring says so, too."""
    parameter = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = Lion([parameter], lr=0.5)
    descend(optimizer, [parameter], [[torch.tensor([math.nan, 1.0])], [torch.ones(2)]])

    assert parameter.tolist() == [3.0, 3.0]
    assert optimizer.state[parameter]["exp_avg"].isnan().tolist() == [True, False]


def test_it_trains():
    torch.manual_seed(0)
    x = torch.randn(64, 8)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    target = torch.sin(x.sum(1, keepdim=True))
    optimizer = Lion(model.parameters(), lr=3e-3, weight_decay=0.01)
    losses = []
    for _ in range(300):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    assert losses[-1] < 0.1 * losses[0]
