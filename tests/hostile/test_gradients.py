"""Gradients that share memory: one for two parameters, views of one tensor, of a state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from tests.cases.plays import Play, singles
from tests.cases.table import Table
from torchgraph.errors import NoProgram

case = Table("step graph", says=None)

Weights = Sequence[nn.Parameter]


def two() -> nn.ParameterList:
    """Parameters that are alike."""
    return nn.ParameterList([nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))])


def adds_up(
    weights: Weights, before: Any, first: Callable[[], Any] = int, last: Callable[[], Any] = int
) -> Play:
    """What ``backward`` adds to the gradients is never dropped by the step."""
    optimizer = torch.optim.SGD(weights, lr=0.05)

    def body(x):
        first()
        loss = ((x * weights[0]).sum(1) * (x * weights[1]).sum(1)).mean()
        loss.backward()
        last()
        optimizer.step()
        return loss

    return Play(body, [weights, optimizer], before, singles(16))


def share(weights: Weights) -> None:
    """Both have one gradient."""
    weights[0].grad = weights[1].grad


def part(weights: Weights) -> None:
    """Each has its own."""
    for weight in weights:
        weight.grad = None if weight.grad is None else weight.grad.clone()


def lay(weights: Weights, flat: torch.Tensor, start: int = 0) -> None:
    """Gradients are rows of ``flat``."""
    for weight in weights:
        weight.grad = flat[start : start + 4]
        start += 4


@case(forms="step", serves=True, slow=True)
def one_gradient_of_two_parameters_for_a_while():
    weights = two()
    return adds_up(weights, {6: lambda: share(weights), 11: lambda: part(weights)})


@case(forms="step", serves=True)
def one_gradient_of_which_the_step_drops_one():
    weights = two()

    def norm():
        weights[0].grad.mul_(weights[1].grad.norm())
        weights[1].grad = None

    for weight in weights:
        weight.grad = torch.ones(4)
    change = {n: lambda: setattr(weights[1], "grad", torch.full((4,), 0.5)) for n in range(1, 16)}
    change |= {n: lambda: share(weights[::-1]) for n in range(6, 9)}
    return adds_up(weights, change, norm)


@case(forms="step", serves=True)
def rows_of_a_flat_tensor_that_come_apart():
    weights, flat = two(), torch.zeros(8)
    lay(weights, flat)
    change = {7: lambda: part(weights), 12: lambda: lay(weights, flat)}
    return adds_up(weights, change, flat.zero_, lambda: flat.mul_(0.5))


@case(forms="step", serves=True)
def rows_that_change_places():
    weights, flat = two(), torch.zeros(8)
    lay(weights, flat)
    change = {7: lambda: lay(list(weights)[::-1], flat), 12: lambda: lay(weights, flat)}
    return adds_up(weights, change, lambda: flat.mul_(0.5))


@case(forms="step", serves=True)
def rows_of_a_tensor_that_nobody_names():
    weights = two()
    lay(weights, torch.zeros(8))
    return adds_up(weights, {9: lambda: part(weights)}, lambda: weights[0].grad.mul_(0.5))


@case(forms="step", serves=True)
def a_gradient_in_a_state_that_is_read():
    weights, held = two(), nn.BatchNorm1d(8)
    lay(weights, held.running_mean)

    def norm():
        weights[0].data.mul_(1 - 0.01 * held.running_mean.norm())

    play = adds_up(weights, {7: lambda: part(weights), 12: lambda: share(weights)}, norm)
    play.watched.append(held)
    return play


@case(forms="step", refused=NoProgram)
def a_row_that_is_read_through_another_view():
    weights, flat = two(), torch.zeros(8)
    lay(weights, flat)
    row = flat[2:6]
    change = {8: lambda: part(weights)}
    return adds_up(weights, change, last=lambda: weights[0].data.mul_(1 - 0.01 * row.norm()))


@pytest.mark.parametrize("case", case)
def test_gradients(case):
    case.check()
