"""Writes into memory that is not contiguous: what reads it next computes eager's last bits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchgraph as tg
from torchgraph.counters import counters

LAYOUTS = {
    "transposed": lambda: torch.randn(7, 5).t(),
    "gaps": lambda: torch.randn(5, 14)[:, ::2],
}
WRITES = {
    "masked_fill": lambda x: x.masked_fill_(x < -1, -1),
    "scatter": lambda x: x.scatter_(1, torch.zeros(len(x), 1, dtype=torch.long), x.clone()),
    "relu": lambda x: x.relu_(),
    "a transposed view": lambda x: x.t().masked_fill_(x.t() < -1, -1),
    "foreach": lambda x: torch._foreach_add_([x], 1.0),
    "uniform": lambda x: x.uniform_(),
    "cumsum": lambda x: x.cumsum_(0),
    "out": lambda x: torch.add(x, 1, out=x),
}
NO_PROGRAM = {
    "addmm": lambda x: x.addmm_(torch.ones(5, 2), torch.ones(2, 7)),
    "a part by baddbmm": lambda x: x[None, :, :4].baddbmm_(
        torch.rand(1, 5, 2), torch.rand(1, 2, 4)
    ),
}


def runs(write, of_layout, *, part, graphed):
    def step(x):
        seen = x[1]
        write(x)
        if part:
            x[0] = 0.5
        return torch.tanh(x), F.softplus(x), seen.exp()

    torch.manual_seed(0)
    step = tg.step(step) if graphed else step
    found = []
    for _ in range(5):
        x = of_layout()
        found.append([*step(x), x])
    return found


def compare(write, layout, part):
    eager = runs(write, LAYOUTS[layout], part=part, graphed=False)
    ours = runs(write, LAYOUTS[layout], part=part, graphed=True)
    for lefts, rights in zip(eager, ours, strict=True):
        for left, right in zip(lefts, rights, strict=True):
            assert left.stride() == right.stride()
            assert left.equal(right)


@pytest.mark.parametrize("part", [False, True], ids=["whole", "and a part"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("write", WRITES)
def test_what_reads_it_next(write, layout, part):
    before = counters.replays
    compare(WRITES[write], layout, part)
    assert counters.replays > before


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("write", NO_PROGRAM)
def test_bits_that_depend_on_where_the_result_lies(write, layout):
    with pytest.warns(tg.errors.EagerWarning, match="writes|adds up"):
        compare(NO_PROGRAM[write], layout, part=True)
