"""The chains of `benchmarks.fusions` around a residual addition: dropout, activations, norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from torchgraph.passes.fusions.norm import op as norm

INDUCTOR = "inductor"
"""The contender that is compiled before it is timed."""

Calls = dict[str, Callable[[], Any]]
aten = torch.ops.aten
EPS = 1e-6


def _randn(rows: int, width: int, count: int) -> list[Tensor]:
    return [torch.randn(rows, width) for _ in range(count)]


def dropout_add(rows: int, width: int) -> Calls:
    """Dropout in training, then the residual: the mask is drawn as eager draws it."""
    x, residual = _randn(rows, width, 2)
    generator = torch.Generator(x.device)

    def mask() -> Tensor:
        generator.manual_seed(0)
        return torch.empty_like(x).bernoulli_(0.9, generator=generator).div_(0.9)

    return {
        "bernoulli_, div_, mul, add_": lambda: torch.mul(x, mask()).add_(residual),
        "bernoulli_, div_, addcmul": lambda: torch.addcmul(residual, x, mask()),
    }


def masked_add(rows: int, width: int) -> Calls:
    """What is left of it once there is a mask."""
    x, residual = _randn(rows, width, 2)
    mask = torch.empty_like(x).bernoulli_(0.9).div_(0.9)
    return {
        "mul, add_": lambda: torch.mul(x, mask).add_(residual),
        "addcmul": lambda: torch.addcmul(residual, x, mask),
        INDUCTOR: lambda: x * mask + residual,
    }


def bias_activation_add(rows: int, width: int) -> Calls:
    """Where no product takes the bias: bias, gelu, residual."""
    x, residual = _randn(rows, width, 2)
    bias = torch.randn(width)
    return {
        "add, gelu, add_": lambda: F.gelu(torch.add(x, bias)).add_(residual),
        INDUCTOR: lambda: F.gelu(x + bias) + residual,
    }


def layer_norm(rows: int, width: int) -> Calls:
    """A residual addition and the layer norm behind it."""
    x, residual = _randn(rows, width, 2)
    weight, bias = torch.rand(width), torch.randn(width)

    def separate() -> Any:
        total = torch.add(x, residual)
        return total, *aten.native_layer_norm(total, [width], weight, bias, EPS)

    return {
        "add, native_layer_norm": separate,
        "add_layer_norm, the op": lambda: norm.add_layer_norm(x, residual, weight, bias, EPS),
        INDUCTOR: separate,
    }


def layer_norm_backward(rows: int, width: int) -> Calls:
    """Its gradient, and the one that comes along the residual connection."""
    total, grad, other = _randn(rows, width, 3)
    weight, bias = torch.rand(width), torch.randn(width)
    _, mean, rstd = aten.native_layer_norm(total, [width], weight, bias, EPS)

    def separate() -> Any:
        back = aten.native_layer_norm_backward(
            grad, total, [width], mean, rstd, weight, bias, [True, True, True]
        )
        return back[0].add_(other), back[1], back[2]

    return {
        "native_layer_norm_backward, add_": separate,
        "add_layer_norm_backward, the op": lambda: norm.add_layer_norm_backward(
            grad, other, total, mean, rstd, weight
        ),
        INDUCTOR: separate,
    }


def rms_norm(rows: int, width: int) -> Calls:
    """A residual addition and the RMS norm behind it, which ATen has no kernel for on the CPU."""
    x, residual = _randn(rows, width, 2)
    weight = torch.rand(width)

    def separate() -> Any:
        total = torch.add(x, residual)
        rstd = torch.pow(total, 2).mean([-1], True).add_(EPS).rsqrt_()
        return total, torch.mul(total, rstd).mul_(weight), rstd

    return {
        "add, pow, mean, add_, rsqrt_, mul, mul_": separate,
        "add_rms_norm, the op": lambda: norm.add_rms_norm(x, residual, weight, EPS),
        INDUCTOR: separate,
    }


def rms_norm_backward(rows: int, width: int) -> Calls:
    """Its gradient as autograd takes it, and the one along the residual connection."""
    total, grad, other = _randn(rows, width, 3)
    weight = torch.rand(width)
    rstd = (total.square().mean(-1, keepdim=True) + EPS).rsqrt()

    def separate() -> Any:
        by_weight = torch.mul(grad, torch.mul(total, rstd)).sum(0)
        weighted = torch.mul(grad, weight)
        half = torch.mul(weighted, total).sum([-1], True).mul_(-0.5).mul_(rstd.pow(3))
        share = half.expand(total.shape).div(width).mul_(torch.mul(total, 2.0))
        return torch.add(other, weighted.mul_(rstd)).add_(share), by_weight

    return {
        "the 13 ops": separate,
        "add_rms_norm_backward, the op": lambda: norm.add_rms_norm_backward(
            grad, other, total, rstd, weight
        ),
        INDUCTOR: separate,
    }
