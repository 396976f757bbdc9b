"""The chains that `benchmarks.fusions` measures: what a program runs, and what could run instead.

Each ``make`` draws its tensors and returns the contenders by name, what the program runs first.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from torchgraph import ops
from torchgraph.passes.fusions.bce_mean import op as bce_mean

from .fusion_graphs import inference, training
from .fusion_residual import (
    INDUCTOR,
    Calls,
    bias_activation_add,
    dropout_add,
    layer_norm,
    layer_norm_backward,
    masked_add,
    rms_norm,
    rms_norm_backward,
)

aten = torch.ops.aten


@dataclass(frozen=True)
class Row:
    """One chain in one shape."""

    name: str
    about: str
    make: Callable[[], Calls]
    rtol: float = 1e-4
    whole: bool = False
    """Whole Graphs, which run below autograd by themselves and need it before."""


def matrix_product(rows: int, inner: int, columns: int, dtype: torch.dtype) -> Calls:
    """An addition to a product, whose other addend is read afterwards or is not."""
    a, b = torch.randn(rows, inner, dtype=dtype), torch.randn(inner, columns, dtype=dtype)
    c = torch.randn(rows, columns, dtype=dtype)
    total = c.clone()
    return {
        "mm, add_": lambda: torch.mm(a, b).add_(c),
        "addmm": lambda: torch.addmm(c, a, b),
        "addmm_ (the addend dies)": lambda: total.addmm_(a, b),
        INDUCTOR: lambda: torch.mm(a, b) + c,
    }


def batched_product(batch: int, rows: int, inner: int, columns: int) -> Calls:
    """The same for ``bmm``."""
    a, b = torch.randn(batch, rows, inner), torch.randn(batch, inner, columns)
    c = torch.randn(batch, rows, columns)
    total = c.clone()
    return {
        "bmm, add_": lambda: torch.bmm(a, b).add_(c),
        "baddbmm": lambda: torch.baddbmm(c, a, b),
        "baddbmm_ (the addend dies)": lambda: total.baddbmm_(a, b),
    }


def convolution(size: int, channels: int) -> Calls:
    """A residual addition to a convolution; mkldnn's op is what Inductor calls."""
    x, other = torch.randn(8, channels, size, size), torch.randn(8, channels, size, size)
    weight = torch.randn(channels, channels, 3, 3) / (3 * math.sqrt(channels))

    def mkldnn() -> Tensor:
        ones = [1, 1]
        added: Tensor = torch.ops.mkldnn._convolution_pointwise.binary(
            x, other, weight, None, ones, ones, ones, 1, "add", 1.0, None, [], None
        )
        return added

    calls: Calls = {"convolution, add_": lambda: F.conv2d(x, weight, padding=1).add_(other)}
    if x.device.type == "cpu":
        calls["mkldnn, internal op"] = mkldnn
    calls[INDUCTOR] = lambda: F.conv2d(x, weight, padding=1) + other
    return calls


def additions(size: int) -> Calls:
    """A sum of four; ATen has no addition of more than two."""
    a, b, c, d = (torch.randn(size) for _ in range(4))
    return {
        "add, add_, add_": lambda: torch.add(a, b).add_(c).add_(d),
        "stack, sum": lambda: torch.stack((a, b, c, d)).sum(0),
        INDUCTOR: lambda: a + b + c + d,
    }


def cast_scale(size: int) -> Calls:
    """A cast and two multiplications."""
    x, scale = torch.randn(size).bfloat16(), torch.tensor(0.3)
    return {
        "_to_copy, mul_, mul_": lambda: x.float().mul_(0.5).mul_(scale),
        "cast_scale, the op": lambda: ops.cast_scale(x, scale, 0.5, dtype=torch.float32),
        INDUCTOR: lambda: x.float() * 0.5 * scale,
    }


def projections(rows: int, width: int) -> Calls:
    """Query, key and value of one input."""
    x = torch.randn(rows, width)
    weights = [torch.randn(width, width) / math.sqrt(width) for _ in range(3)]
    biases = [torch.randn(width) for _ in range(3)]
    weight, bias = torch.cat(weights), torch.cat(biases)

    def together(weight: Tensor, bias: Tensor) -> Any:
        return torch.addmm(bias, x, weight.t()).split(width, 1)

    return {
        "3 addmm": lambda: [torch.addmm(b, x, w.t()) for w, b in zip(weights, biases, strict=True)],
        "cat, addmm, split": lambda: together(torch.cat(weights), torch.cat(biases)),
        "addmm, split (cat done before)": lambda: together(weight, bias),
    }


def projections_backward(rows: int, width: int) -> Calls:
    """Their gradients."""
    x = torch.randn(rows, width)
    weights = [torch.randn(width, width) / math.sqrt(width) for _ in range(3)]
    grads = [torch.randn(rows, width) for _ in range(3)]

    def separate() -> Any:
        onto_x = torch.mm(grads[0], weights[0])
        for grad, weight in zip(grads[1:], weights[1:], strict=True):
            onto_x.add_(torch.mm(grad, weight))
        return onto_x, [torch.mm(grad.t(), x) for grad in grads]

    def accumulating() -> Any:
        onto_x = torch.mm(grads[0], weights[0])
        for grad, weight in zip(grads[1:], weights[1:], strict=True):
            onto_x.addmm_(grad, weight)
        return onto_x, [torch.mm(grad.t(), x) for grad in grads]

    def together() -> Any:
        grad, weight = torch.cat(grads, 1), torch.cat(weights)
        return torch.mm(grad, weight), torch.mm(grad.t(), x).split(width)

    return {
        "6 mm, 2 add_": separate,
        "4 mm, 2 addmm_": accumulating,
        "2 cat, 2 mm, split": together,
    }


def attention(batch: int, heads: int, rows: int, width: int, dtype: torch.dtype) -> Calls:
    """Heads split, softmax(q k^T) v, heads merged."""
    x = torch.randn(batch, rows, 3 * heads * width, dtype=dtype)
    q, k, v = (part.view(batch, rows, heads, width).transpose(1, 2) for part in x.chunk(3, -1))
    scale = 1 / math.sqrt(width)

    def separate() -> Tensor:
        flat = [each.reshape(batch * heads, rows, width) for each in (q, k, v)]
        weights = torch.bmm(flat[0], flat[1].mT).mul_(scale)
        result = torch.bmm(torch.softmax(weights, -1), flat[2])
        return result.view(batch, heads, rows, width).transpose(1, 2).contiguous()

    def fused() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2).contiguous()

    return {
        "bmm, mul_, _softmax, bmm": separate,
        "scaled_dot_product_attention": fused,
        INDUCTOR: lambda: (torch.softmax(q @ k.mT * scale, -1) @ v).transpose(1, 2).contiguous(),
    }


def bce_with_logits(size: int) -> Calls:
    """Binary cross entropy, its mean and its gradient, as PyTorch decomposes it."""
    x, target = 3 * torch.randn(size), (torch.rand(size) > 0.5).float()
    one = torch.ones(())

    def chain() -> Any:
        log_sigmoid = aten.log_sigmoid_forward(x)[0]
        rest = torch.empty_like(target).fill_(1).sub_(target).mul_(x)
        loss = rest.sub_(log_sigmoid).mean()
        return loss, torch.sigmoid(x).sub_(target).mul_(torch.ones_like(loss)).div_(size)

    def without_ones() -> Any:
        loss = torch.rsub(target, 1).mul_(x).sub_(aten.log_sigmoid_forward(x)[0]).mean()
        return loss, torch.sigmoid(x).sub_(target).div_(size)

    def sharing() -> Any:
        """The gradient from the exponentials that the loss has computed already."""
        log_sigmoid, exponentials = aten.log_sigmoid_forward(x)
        negatives = torch.rsub(target, 1)
        loss = torch.mul(negatives, x).sub_(log_sigmoid).mean()
        grad = torch.mul(one, -1 / size).expand_as(x)
        onto_x = aten.log_sigmoid_backward(grad, x, exponentials)
        return loss, onto_x.add_(negatives, alpha=1 / size)

    return {
        "the 13 ops": chain,
        "the 9 that compute": without_ones,
        "with shared exponentials": sharing,
        "bce_with_logits_mean, the ops": lambda: (
            bce_mean.forward(x, target),
            bce_mean.backward(one, x, target),
        ),
        INDUCTOR: chain,
    }


def geglu(rows: int, width: int) -> Calls:
    """Two halves of one linear layer: one through gelu, times the other."""
    both = torch.randn(rows, 2 * width)

    def separate() -> Tensor:
        first, second = both.chunk(2, -1)
        return F.gelu(first).mul_(second)

    return {"gelu, mul_": separate, INDUCTOR: separate}


def bias_gelu(rows: int, width: int) -> Calls:
    """Where no product takes the bias."""
    x, bias = torch.randn(rows, width), torch.randn(width)
    return {"add, gelu": lambda: F.gelu(x + bias), INDUCTOR: lambda: F.gelu(x + bias)}


def batch_norm_add_relu(channels: int, size: int, train: bool) -> Calls:
    """The end of a residual branch."""
    x, other = torch.randn(8, channels, size, size), torch.randn(8, channels, size, size)
    mean, variance = torch.zeros(channels), torch.ones(channels)
    weight, bias = torch.rand(channels), torch.rand(channels)

    def separate() -> Tensor:
        # No running statistics in training: they are not what is fused.
        running = (None, None) if train else (mean, variance)
        normed = F.batch_norm(x, running[0], running[1], weight, bias, training=train)
        return normed.add_(other).relu_()

    return {"batch_norm, add_, relu_": separate, INDUCTOR: separate}


def _each(
    name: str, make: Callable[..., Calls], shapes: Sequence[tuple[Any, ...]], rtol: float = 1e-4
) -> list[Row]:
    return [Row(name, _about(make, shape), partial(make, *shape), rtol) for shape in shapes]


def _about(make: Callable[..., Calls], shape: tuple[Any, ...]) -> str:
    named = zip(inspect.signature(make).parameters, shape, strict=True)
    return ", ".join(f"{name} {value}".replace("dtype torch.", "") for name, value in named)


SINGLE, HALF = torch.float32, torch.bfloat16
_PRODUCTS = ((32, 128, 128), (512, 128, 128), (512, 128, 512), (512, 512, 128), (4096, 16, 512))
_PROJECTED = ((1, 768), (512, 128), (512, 256), (2048, 512))
_NORMALIZED = ((512, 256), (4096, 768))
_ATTENDED = ((8, 4, 16, 32), (8, 4, 64, 32), (4, 12, 128, 64), (2, 8, 512, 64))
ROWS: tuple[Row, ...] = (
    *_each("add_to_output", matrix_product, [(*s, SINGLE) for s in _PRODUCTS], 1e-3),
    *_each("add_to_output", matrix_product, [(*s, HALF) for s in _PRODUCTS], 1e-1),
    *_each("add_to_output", batched_product, [(32, 64, 32, 64), (32, 64, 64, 32)], 1e-3),
    *_each("convolution_add", convolution, [(16, 64), (32, 32)], 1e-3),
    *_each("consecutive_add", additions, [(2**16,), (2**22,)]),
    *_each("cast_scale", cast_scale, [(2**12,), (2**16,), (2**20,), (2**24,)]),
    *_each("grouped_matmul", projections, _PROJECTED, 1e-3),
    *_each("grouped_matmul, backward", projections_backward, _PROJECTED, 1e-2),
    *_each("attention", attention, [(*s, SINGLE) for s in _ATTENDED]),
    *_each("attention", attention, [(*s, HALF) for s in _ATTENDED], 1e-1),
    *_each("bce_mean", bce_with_logits, [(2**12,), (2**16,), (2**20,)]),
    *_each("geglu", geglu, [(512, 512), (2048, 2048)]),
    *_each("bias_gelu", bias_gelu, [(512, 512), (2048, 2048)]),
    *_each("dropout_add", dropout_add, [(512, 512), (2048, 2048)]),
    *_each("dropout_add, mask given", masked_add, [(512, 512), (2048, 2048)]),
    *_each("bias_activation_add", bias_activation_add, [(512, 512), (2048, 2048)]),
    *_each("layer_norm", layer_norm, _NORMALIZED),
    *_each("layer_norm, backward", layer_norm_backward, _NORMALIZED, 1e-3),
    *_each("rms_norm", rms_norm, _NORMALIZED),
    *_each("rms_norm, backward", rms_norm_backward, _NORMALIZED, 1e-3),
    *_each("batch_norm_add_relu", batch_norm_add_relu, [(64, 16, False), (64, 16, True)], 1e-3),
    Row("step", "decoder, 2 layers, width 128, AdamW", training, 1e-2, whole=True),
    Row("infer", "the same decoder, one forward", inference, 1e-3, whole=True),
)
