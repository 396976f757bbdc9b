"""Tensors outside of modules: given other memory, frozen, asked for their gradient."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import torchgraph as tg
from torchgraph.errors import EagerWarning
from torchgraph.testing import counters


def played(make: Any, count: int = 8, changes: Any = None, served: int = 3) -> None:
    """A step does what eager does; ``make`` gives it with an object that holds what it moves."""
    (mine, held), (its, other) = make(), make()
    graphed = tg.step(mine)
    graphed.config.set_fallback("eager")
    before = counters.replays
    for number in range(count):
        for one in (held, other):
            if changes is not None:
                changes(number, one)
        x = torch.full((2, 2), float(number + 1))
        got, expected = graphed(x.clone()), its(x.clone())
        assert torch.equal(got, expected)
        for one, another in zip(vars(held).values(), vars(other).values(), strict=True):
            assert torch.equal(one, another)
    replays = counters.replays - before
    assert replays >= served if served else replays == 0


def test_two_that_swap_their_memory():
    def make() -> Any:
        held = SimpleNamespace(one=torch.zeros(2), other=torch.ones(2))

        def step(x: torch.Tensor) -> torch.Tensor:
            held.one.data, held.other.data = held.other.data, held.one.data
            return x.sum() + held.one.sum()

        return step, held

    played(make)


def test_one_that_is_given_a_part_of_an_argument():
    def make() -> Any:
        held = SimpleNamespace(last=torch.zeros(2))

        def step(x: torch.Tensor) -> torch.Tensor:
            held.last.data = x[0]
            return x.sum()

        return step, held

    with pytest.warns(EagerWarning, match="shares memory with args"):
        played(make, served=0)


def test_one_that_is_frozen_between_calls():
    def make() -> Any:
        held = SimpleNamespace(bias=torch.zeros(2, requires_grad=True))
        weight = torch.ones(2, requires_grad=True)

        def step(x: torch.Tensor) -> torch.Tensor:
            ((held.bias + weight) * x).sum().backward()
            return held.bias.grad.clone()

        return step, held

    def changes(number: int, held: Any) -> None:
        if number == 4:
            held.bias.requires_grad_(False)

    played(make, changes=changes)


def test_whether_there_is_a_gradient_that_is_dropped_then():
    def make() -> Any:
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        held = SimpleNamespace(weight=model.weight)

        def step(x: torch.Tensor) -> torch.Tensor:
            scale = 2.0 if held.weight.grad is None else 1.0
            optimizer.zero_grad()
            loss = model(x).sum() * scale
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step, held

    def changes(number: int, held: Any) -> None:
        if number in (5, 9):
            held.weight.grad = None

    played(make, count=12, changes=changes)


@pytest.fixture
def shallow():
    """Fewer frames until there are too many, each of which is read."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(500)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize("how", ["settrace", "recursion"])
def test_a_step_that_takes_the_trace_function_away_runs_in_eager(how):
    held = SimpleNamespace(scale=1.0)

    def deep() -> Any:
        return deep()

    def step(x: torch.Tensor) -> torch.Tensor:
        if how == "settrace":
            sys.settrace(None)
        try:
            found = held.scale if how == "settrace" else deep()
        except RecursionError:
            found = held.scale
        return x * found

    graphed = tg.step(step)
    found = []
    with pytest.warns(EagerWarning, match="trace function"):
        found += [graphed(torch.ones(2)) for _ in range(8)]
    held.scale = 3.0
    found += [graphed(torch.ones(2)) for _ in range(2)]
    assert [one[0].item() for one in found] == [1.0] * 8 + [3.0] * 2


def test_one_that_is_read_through_data_alone():
    """As averages of weights are: ``average.data.lerp_(w.data, 0.5)``."""

    def make() -> Any:
        held = SimpleNamespace(average=torch.zeros(2, 2))

        def step(x: torch.Tensor) -> torch.Tensor:
            held.average.data.lerp_(x.data, 0.5)
            return x.sum()

        return step, held

    def changes(number: int, held: Any) -> None:
        if number == 5:
            held.average.data = torch.full((2, 2), 7.0)

    played(make, changes=changes)
