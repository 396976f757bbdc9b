"""Calls that are recorded again and again: what is said names what moves, and what to write."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import torchgraph as tg
from tests.support import thinned
from torchgraph.errors import CacheThrashWarning, EagerWarning, NoProgram


def said(step: Any, calls: Callable[[int], tuple[Any, ...]], count: int) -> list[Any]:
    """The warnings of some calls."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(count):
            step(*calls(number))
    return [one for one in caught if issubclass(one.category, (EagerWarning, CacheThrashWarning))]


def linear() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    return net, torch.optim.SGD(net.parameters(), lr=0.1)


@pytest.mark.parametrize("shapes", thinned([2, 4], keep=[2]))
def test_an_item_is_served_for_all_shapes(shapes: int) -> None:
    net, optimizer = linear()

    @tg.step
    def step(x):
        optimizer.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    found = said(step, lambda number: (torch.randn(3 + number % shapes, 4),), 8 * shapes)
    assert [one.category for one in found] == [CacheThrashWarning] * (shapes > 8)
    calls = step.report().calls
    assert calls.recorded <= 1 + 2 * shapes or shapes > 8


def test_a_branch_on_data_with_many_shapes_keeps_its_programs() -> None:
    net, optimizer = linear()

    @tg.step
    def step(x):
        optimizer.zero_grad()
        loss = net(x).pow(2).mean() + x.mean()
        if x.sum() > 0:
            loss = 2 * loss
        loss.backward()
        optimizer.step()
        return loss

    def call(number: int) -> tuple[torch.Tensor]:
        sign = -1 if number // 4 % 2 else 1
        return (sign * torch.rand(3 + number % 4, 4),)

    assert not said(step, call, 40)
    # Of kinds that come in a row as the first the others are recorded when they come again.
    assert step.report().calls.programs == 22


def trained(x: Any, net: Any, optimizer: Any, loss_of: Any) -> Any:
    optimizer.zero_grad()
    loss = loss_of(net(x), x[:, :2])
    loss.backward()
    optimizer.step()
    return loss


def test_an_object_that_is_made_anew_is_named() -> None:
    net, optimizer = linear()
    found = said(
        tg.step(trained), lambda number: (torch.randn(3, 4), net, optimizer, nn.MSELoss()), 20
    )
    assert [one.category for one in found] == [EagerWarning]
    assert all("args[3] is another MSELoss" in str(one.message) for one in found)


def test_a_number_that_moves_is_named() -> None:
    net, optimizer = linear()

    def step(x, epoch):
        loss = trained(x, net, optimizer, functional.mse_loss)
        return loss * epoch

    found = said(tg.step(step), lambda number: (torch.randn(3, 4), number), 20)
    assert "args[1] was 7 and is 8" in str(found[0].message)
    assert len(found) == 1


def test_a_tensor_as_an_index_is_told_what_to_write() -> None:
    torch.manual_seed(0)
    table = nn.Parameter(torch.randn(5, 5))
    optimizer = torch.optim.SGD([table], lr=0.01)

    @tg.step
    def step(tags):
        optimizer.zero_grad()
        score = sum(table[tags[i + 1], tags[i]] for i in range(2))
        score.backward()
        optimizer.step()
        return score

    found = said(step, lambda number: (torch.randint(0, 5, (3,)),), 40)
    assert len(found) == 1
    message = str(found[0].message)
    assert "a tensor without dimensions, an index that Python reads as a number" in message
    assert "index_select" in message
    shown = "".join(str(step.report()).split())
    assert "table[tags[i+1],tags[i]]" in shown


@pytest.mark.parametrize("view", [False, True])
def test_an_argument_in_the_memory_of_a_state_is_told_a_way_out(view: bool) -> None:
    def run(wrap: Any, way: str) -> tuple[Any, list[Any]]:
        torch.manual_seed(0)
        net = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(x, weight):
            weight = net.weight if way == "read" else weight
            optimizer.zero_grad()
            loss = (net(x).sum() + (weight * 2).sum()) ** 2
            loss.backward()
            optimizer.step()
            return loss

        def given(number: int) -> tuple[Any, ...]:
            weight = net.weight.detach()[1:] if view else net.weight
            if way == "clone":
                weight = weight.detach().clone()
            return torch.randn(3, 4), weight if way != "read" else None

        made = wrap(step)
        if wrap is tg.step:
            found = said(made, given, 8)
        else:
            found = [made(*given(number)) for number in range(8)]
        return (made, found), [parameter.tolist() for parameter in net.parameters()]

    for way in ("", "clone", "read"):
        (step, found), ours = run(tg.step, way)
        assert ours == run(lambda function: function, way)[1]
        if way:
            assert not found
            assert step.report().calls.programs >= 5
        else:
            assert len(found) == 1
            assert "args[1] lies in the memory of" in str(found[0].message)
            assert "args[1].detach().clone()" in str(found[0].message)


def test_the_line_that_gives_a_tensor_to_numpy_is_the_users() -> None:
    @tg.step
    def step(x):
        return x[np.argsort(x.detach())]

    with pytest.raises(NoProgram, match=r"test_what_moves\.py:\d+ in step: return x\[np.argsort"):
        step(torch.randn(8))


def test_a_text_that_goes_round_has_a_program_for_each_turn() -> None:
    linear, state = nn.Linear(2, 2), {"phase": "a"}
    following = {"a": "b", "b": "c", "c": "a"}

    @tg.step
    def step(x):
        state["phase"] = following[state["phase"]]
        return linear(x) * "abc".index(state["phase"])

    for number in range(1, 16):
        x = torch.ones(1, 2)
        assert torch.equal(step(x), linear(x) * (number % 3))
        assert state["phase"] == "abc"[number % 3]
    assert step.report().calls.programs >= 6
