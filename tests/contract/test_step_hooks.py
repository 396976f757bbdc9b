"""Hooks around ``optimizer.step()`` in a step of the user's: what they write into gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_pre_hook

import torchgraph as tg


def halve(optimizer: optim.Optimizer, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad.mul_(0.5)


REGISTER: dict[str, Callable[[optim.Optimizer], Any]] = {
    "before": lambda one: one.register_step_pre_hook(halve),
    "after": lambda one: one.register_step_post_hook(halve),
    "everywhere": lambda one: register_optimizer_step_pre_hook(halve),
}


def results(register: Callable[[optim.Optimizer], Any], wrap: Callable[[Any], Any]) -> list[Any]:
    """Loss, gradient and weight after each of nine calls; the hook is there in three of them."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    called, found = wrap(step), []
    hook = None
    for number in range(9):
        if number == 3:
            hook = register(optimizer)
        if number == 6:
            hook.remove()
        loss = called(torch.randn(5, 4), torch.randn(5, 3))
        assert model.weight.grad is not None
        found += [loss.detach(), model.weight.grad.clone(), model.weight.detach().clone()]
    return found


@pytest.mark.parametrize("kind", REGISTER)
def test_gradients_are_eagers(kind):
    expected = results(REGISTER[kind], lambda step: step)
    got = results(REGISTER[kind], tg.step)
    assert all(map(torch.equal, got, expected))
