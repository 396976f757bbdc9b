"""Buffers with gaps in their memory: what is written keeps the layout that kernels go by."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import torchgraph as tg
from torchgraph.testing import counters

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Holder(nn.Module):
    def __init__(self, buffer: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("held", buffer)


class Compute(tg.Graph):
    def __init__(self, holder: Holder, function: Function) -> None:
        super().__init__()
        self.holder, self.function = holder, function
        self.config.set_backend("aten")

    def build(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.holder.held, x)


def columns(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(4, 48).to(dtype)[:, 8:24]


def every_other(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(4, 32).to(dtype)[:, ::2]


def summed(held: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return held.copy_(x).exp_().sum()


def normed(held: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return held.add_(x).sin_().norm()


def averaged(held: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return held.mul_(0.3).add_(x, alpha=0.7).sum(0)


def flattened(held: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    held.add_(x)
    flat = held.reshape(-1)
    flat.mul_(2)
    return flat.sum()


def renormed(held: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    held.add_(x).renorm_(2, 0, 1.0)
    return held.flatten()


@pytest.mark.parametrize("function", [summed, normed, averaged, flattened, renormed])
@pytest.mark.parametrize("layout", [columns, every_other])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_ten_calls_are_bitwise_eager(
    dtype: torch.dtype, layout: Callable[[torch.dtype], torch.Tensor], function: Function
) -> None:
    held = layout(dtype)
    twin = torch.empty_strided(held.shape, held.stride(), dtype=dtype).copy_(held)
    graph = Compute(Holder(held), function)
    with torch.no_grad(), counters.expect(replays=8):
        for _ in range(10):
            x = torch.randn(4, 16).to(dtype)
            assert torch.equal(graph(x), function(twin, x))
            assert torch.equal(held, twin)
