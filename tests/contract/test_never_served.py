"""Steps whose programs never serve a later call: they end in eager, with a word, and come back."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import torchgraph as tg
from torchgraph.errors import (
    CacheThrashWarning,
    EagerWarning,
)
from torchgraph.testing import counters

numpy = pytest.importorskip("numpy")


def scaled(interval: int):
    """The usual test for a step that a scaler skips; the scale grows after ``interval`` steps."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=interval)
    stats = {}

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        stats["skipped"] = before > scaler.get_scale()
        return loss.detach()

    return step, model, scaler


def batches(count: int):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(5, 4, generator=generator) for _ in range(count)]


def test_a_scale_that_grows_and_is_read():
    eager, twin, _ = scaled(3)
    step, model, _ = scaled(3)
    step = tg.step(step)
    with counters.expect(replays=27):
        found = [step(x) for x in batches(30)]
    assert torch.equal(torch.stack(found), torch.stack([eager(x) for x in batches(30)]))
    assert torch.equal(model.weight, twin.weight)


def test_an_array_that_is_another_one_at_each_call():
    x = torch.arange(100.0)
    step = tg.step(lambda x, rows: x[rows].sum())
    with pytest.warns((EagerWarning, CacheThrashWarning)) as warned:
        found = [step(x, numpy.arange(n, n + 3)).item() for n in range(24)]
    assert found == [3.0 * n + 3.0 for n in range(24)]
    assert any("torch.from_numpy" in str(one.message) for one in warned)
    with counters.expect(replays=2):  # an array that does come again has a program
        for _ in range(6):
            assert step(x, numpy.arange(2)) == 1.0


def test_a_branch_of_a_counter_has_a_program_each_way():
    """Another input of the step is what comes of it."""
    held = SimpleNamespace(calls=0, extra=torch.ones(3))
    weight = torch.ones(3, requires_grad=True)

    def body(x):
        held.calls += 1
        loss = (x * weight).sum()
        if held.calls % 2 == 0:
            loss = loss + held.extra.sum()
        return loss

    step = tg.step(body)
    with counters.expect(replays=3):
        found = [step(torch.ones(3)).item() for _ in range(8)]
    assert found == [3.0, 6.0] * 4
