"""LAMB's numbers: against the paper's formulas, against OneFlow's, and by hand."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings, strategies as st

from tests.optim import reference
from tests.optim.cases import descend
from torchgraph.optim import LAMB

VALUES = st.one_of(st.just(0.0), st.floats(1e-3, 4), st.floats(-4, -1e-3))


def zero_or(least, most):
    """No number whose square underflows: each order of a formula ends elsewhere there."""
    return st.one_of(st.just(0.0), st.floats(least, most))


def trained(x, gradients, shape=None, dtype=torch.float64, **options: Any):
    """The values of one parameter after a step for each gradient."""
    shape = shape or (len(x),)
    parameter = torch.nn.Parameter(torch.tensor(x, dtype=dtype).view(shape))
    steps = [[torch.tensor(g, dtype=dtype).view(shape)] for g in gradients]
    descend(LAMB([parameter], **options), [parameter], steps)
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
        "eps": data.draw(st.floats(1e-8, 1e-2)),
        "weight_decay": data.draw(zero_or(1e-3, 1)),
        "adam_w_mode": data.draw(st.booleans()),
        "do_bias_correction": data.draw(st.booleans()),
        "maximize": data.draw(st.booleans()),
        "decay_in_trust_ratio": data.draw(st.booleans()),
    }
    expected, smallest = reference.lamb(x, gradients, **options)
    assume(smallest > 1e-4)

    got = trained(x, gradients, shape, **options)
    together = trained(x, gradients, shape, **options, foreach=True)

    assert got == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert together == got


ONEFLOW = [
    dict(zip(("lr", "weight_decay", "do_bias_correction", "adam_w_mode"), values, strict=True))
    for values in itertools.product((0.1, 1e-3), (0.001, 0.1), (True, False), (True, False))
]


@pytest.mark.parametrize("options", ONEFLOW, ids=str)
def test_float32_is_oneflows(options):
    """The settings of OneFlow's own test of LAMB, and its arithmetic."""
    source = torch.Generator().manual_seed(1000)
    x, *gradients = torch.rand(11, 10, generator=source).tolist()
    options = {**options, "betas": (0.99, 0.9), "eps": 1e-6, "decay_in_trust_ratio": False}
    expected, _ = reference.lamb(x, gradients, **options)

    got = trained(x, gradients, dtype=torch.float32, **options)

    assert got == pytest.approx(expected, rel=2e-5, abs=1e-6)


def test_a_million_float32_numbers():
    source = torch.Generator().manual_seed(0)
    x, gradient = torch.randn(2, 1_000_000, generator=source)
    narrow, wide = (torch.nn.Parameter(x.to(dtype)) for dtype in (torch.float32, torch.float64))

    for parameter in (narrow, wide):
        descend(LAMB([parameter], lr=0.1), [parameter], [[gradient.to(parameter.dtype)]] * 2)

    torch.testing.assert_close(narrow.double(), wide, rtol=1e-5, atol=1e-6)


def test_the_first_step_by_hand():
    # m and v are unbiased: r is the sign of the gradient. |x| = 5, |r| = sqrt(2).
    got = trained([3.0, 4.0], [[7.0, -0.5]], lr=0.1, eps=0.0)

    step = 0.1 * 5 / math.sqrt(2)
    assert got == pytest.approx([3 - step, 4 + step], rel=1e-12)


def test_a_decoupled_decay_belongs_to_the_trust_ratio():
    # u = (1, 1) + (1, 3) for the paper; OneFlow divides by the norm of (1, 1).
    paper = trained([1.0, 3.0], [[1.0, 1.0]], lr=0.1, eps=0.0, weight_decay=1.0)
    oneflow = trained(
        [1.0, 3.0],
        [[1.0, 1.0]],
        lr=0.1,
        eps=0.0,
        weight_decay=1.0,
        decay_in_trust_ratio=False,
    )

    ratio = math.sqrt(10) / math.sqrt(20)
    assert paper == pytest.approx([1 - 0.1 * ratio * 2, 3 - 0.1 * ratio * 4], rel=1e-12)
    ratio = math.sqrt(10) / math.sqrt(2)
    assert oneflow == pytest.approx([1 - 0.1 * ratio * 2, 3 - 0.1 * ratio * 4], rel=1e-12)


@pytest.mark.parametrize("foreach", [False, True])
def test_a_norm_of_zero_makes_the_trust_ratio_one(foreach):
    options = {"lr": 0.1, "eps": 0.5, "do_bias_correction": False, "betas": (0.5, 0.75)}
    # m = 1, v = 1, r = 1 / (1 + 0.5)
    assert trained([0.0, 0.0], [[2.0, -2.0]], **options, foreach=foreach) == pytest.approx(
        [-0.1 / 1.5, 0.1 / 1.5], rel=1e-12
    )
    # r = 0
    assert trained([3.0, 4.0], [[0.0, 0.0]], **options, foreach=foreach) == [3.0, 4.0]
    # r = 0, and OneFlow's ratio looks at r alone.
    oneflow = {**options, "weight_decay": 0.5, "decay_in_trust_ratio": False}
    assert trained([3.0, 4.0], [[0.0, 0.0]], **oneflow, foreach=foreach) == pytest.approx(
        [3 * 0.95, 4 * 0.95], rel=1e-12
    )


def test_a_nan_is_not_hidden():
    got = trained([3.0, 4.0], [[math.nan, 1.0]], lr=0.1)

    assert math.isnan(got[0])


def test_float16_has_room_for_its_norms_and_its_eps():
    # |x| is beyond float16, and so is 1 / eps; a parameter without a gradient to speak of is left.
    x, zero = (torch.nn.Parameter(torch.full((400,), v, dtype=torch.float16)) for v in (6e4, 2.0))
    descend(LAMB([x, zero], lr=0.01), [x, zero], [[torch.ones_like(x), torch.zeros_like(zero)]])

    torch.testing.assert_close(x, torch.full_like(x, 6e4 * 0.99))
    assert torch.equal(zero, torch.full_like(zero, 2.0))


def test_it_trains_and_every_layer_at_the_same_pace():
    """The gradients of the two layers differ by a factor of a thousand, which LAMB removes."""
    torch.manual_seed(0)
    x = torch.randn(64, 8)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    target = torch.sin(x.sum(1, keepdim=True))
    optimizer = LAMB(model.parameters(), lr=0.02)
    losses = []
    for _ in range(300):
        optimizer.zero_grad()
        loss = 1000 * torch.nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    assert losses[-1] < 0.05 * losses[0]
