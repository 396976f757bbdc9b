"""Ops whose functional forms compute, or draw, otherwise than eager does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torchgraph.testing import Setup, assert_parity, counters


class _Model(nn.Module):
    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(40, 6))
        self._forward = forward

    def forward(self, *args: Any) -> torch.Tensor:
        out: torch.Tensor = self._forward(self.scale, *args)
        return out


def _check(forward: Callable[..., Any], *batch: torch.Tensor) -> None:
    def make() -> Setup:
        model = _Model(forward)
        return Setup(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, *b: m(*b))

    with counters.expect(replays=2):
        assert_parity(make, [batch] * 4)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_binary_cross_entropy_with_logits_is_eagers(reduction, weighted):
    # torch.func.functionalize has a formula of its own for it, one bit away in every tenth value.
    weights = {"weight": torch.rand(40, 6), "pos_weight": torch.rand(6)} if weighted else {}

    def loss(scale: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(scale, target, reduction=reduction, **weights)

    _check(loss, torch.rand(40, 6))


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t(),
    "sliced columns": lambda x: x[:, :5],
    "every other row": lambda x: x[::2],
    "transposed and sliced": lambda x: x.t()[:, ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("draw", ["bernoulli_", "normal_", "uniform_", "exponential_"])
def test_a_draw_fills_in_eagers_order(layout, draw):
    def loss(scale: torch.Tensor) -> torch.Tensor:
        noise = torch.zeros(40, 6)
        getattr(LAYOUTS[layout](noise), draw)(*((0.9,) if draw == "bernoulli_" else ()))
        return (scale * noise).sum()

    _check(loss)


def test_dropout_of_a_transposed_tensor():
    def loss(scale: torch.Tensor) -> torch.Tensor:
        return (F.dropout(scale.t(), 0.1) * F.alpha_dropout(scale.t(), 0.1, training=True)).sum()

    _check(loss)
