"""Slots that a first step makes: it is eager's own, and one program goes on with them."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from torchgraph.testing import Setup, assert_parity, counters


class FilledByHand(torch.optim.Optimizer):
    """Its slot is allocated, then filled, then updated: all in place, all in the first step."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["slow"] = torch.zeros_like(parameter).copy_(parameter)
                parameter.add_(parameter.grad, alpha=-group["lr"])
                state["slow"].lerp_(parameter, 0.5)
                parameter.copy_(state["slow"])


@pytest.mark.parametrize(
    ("optimizer", "captures", "replays"),
    [
        (FilledByHand, 2, 3),  # its first step was taken for one like the others
        (torch.optim.Adam, 1, 4),
        (torch.optim.RMSprop, 1, 4),
        (functools.partial(torch.optim.SGD, momentum=0.9), 1, 3),
    ],
)
def test_first_values_are_made_once(optimizer: Any, captures: int, replays: int) -> None:
    def make() -> Setup:
        model = nn.Linear(3, 2)
        return Setup(model, optimizer(model.parameters()), lambda m, x: m(x).square().sum())

    with counters.expect(captures=captures, replays=replays):
        assert_parity(make, [(torch.randn(4, 3),) for _ in range(6)])
