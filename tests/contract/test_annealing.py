"""What a training loop sets on a module between calls: eager while it moves, then a program."""

import math

import pytest
import torch
from torch import nn

from tests.contract.models import Function
from torchgraph.errors import EagerWarning
from torchgraph.testing import counters


def lossy(model):
    def build(x):
        loss = model(x)
        loss.backward()
        return loss

    return build


def annealed(step, first):
    """What ``beta`` is at each step: it moves from ``first`` on, and stays at the end."""
    return min(1.0, 0.1 * max(0, step - first))


@pytest.mark.parametrize(("first", "replays"), [(0, 7), (5, 4 + 7)])
def test_a_number_that_the_training_loop_sets_is_annealed(first, replays):
    """As the weight of a KL term is warmed up: eager while it moves, said once, a program after."""

    class Weighted(nn.Linear):
        beta = 0.0

        def forward(self, x):
            return super().forward(x).square().mean() + self.beta * self.weight.square().sum()

    def train(model, step):
        for number in range(first + 20):
            model.beta = annealed(number, first)
            yield step(torch.full((2, 4), number / 10))
        yield model.weight.detach()

    def run(graphed):
        torch.manual_seed(0)
        model = Weighted(4, 3)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)

        def eager(x):
            loss = model(x)
            loss.backward()
            sgd.step()
            sgd.zero_grad()
            return loss.detach()

        step = Function(lossy(model), sgd, model=model) if graphed else eager
        return list(train(model, step))

    words = r"model\.beta was .* and is .*: pass it as an argument"
    with pytest.warns(EagerWarning, match=words) as warned, counters.expect(replays=replays):
        got = run(True)
    assert len([one for one in warned if issubclass(one.category, EagerWarning)]) == 1
    assert all(map(torch.equal, run(False), got))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_a_sign_of_zero_in_a_buffer_that_python_reads(dtype):
    class Signed(nn.Linear):
        def forward(self, x):
            value = self.sign.item()
            return super().forward(x) * math.copysign(2.0, getattr(value, "real", value))

    model = Signed(4, 3)
    model.register_buffer("sign", torch.tensor(0.0, dtype=dtype))
    graph = Function(lambda x: model(x), model=model)
    for sign in (0.0, 0.0, 0.0, 0.0, -0.0, -0.0, -0.0, 0.0, -0.0):
        model.sign.fill_(sign)
        x = torch.randn(2, 4)
        with torch.no_grad():
            assert torch.equal(graph(x), model(x))


def test_nan_in_a_buffer_that_python_reads_is_one_value():
    model = nn.Linear(4, 3)
    model.register_buffer("limit", torch.tensor(float("nan")))
    graph = Function(lambda x: model(x) * (2 if model.limit.item() > 1 else 3), model=model)
    with counters.expect(replays=4):
        for _ in range(6):
            x = torch.randn(2, 4)
            assert torch.equal(graph(x), model.forward(x).detach() * 3)
