"""Any small loss over masked rows: loss and gradients as without padding, or it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings, strategies as st
from torch.nn import functional as F

from torchgraph.buckets.flow import OtherProgram, analyse
from torchgraph.errors import PaddingRefused

from .. import support

ROWS, PADDED, WIDTH = 3, 7, 4

LAYERS: dict[str, Callable[[Any, Any], Any]] = {
    "linear": lambda x, w: F.linear(x, w, w[0]),
    "matrix product": lambda x, w: x @ w,
    "bias": lambda x, w: x + w[1],
    "scale": lambda x, w: x * w[2],
    "norm": lambda x, w: F.layer_norm(x, [WIDTH], w[0], w[1]),
    "rms norm": lambda x, w: F.rms_norm(x, [WIDTH], w[0]),
    "group norm": lambda x, w: F.group_norm(x, 2, w[0], w[1]),
    "batch norm": lambda x, w: F.batch_norm(x, None, None, w[2], w[3], training=True),
    "relu": lambda x, w: F.relu(x),
    "gelu": lambda x, w: F.gelu(x),
    "silu": lambda x, w: F.silu(x),
    "tanh": lambda x, w: torch.tanh(x),
    "sqrt": lambda x, w: (x * x + 1).sqrt(),
    "softmax": lambda x, w: torch.softmax(x, -1),
    "softmax of rows": lambda x, w: torch.softmax(x, 0),
    "attention in rows": lambda x, w: F.scaled_dot_product_attention(
        *(x @ w).view(-1, 1, 2, 2).expand(-1, 2, 2, 2).split([1, 1], 1)[:1] * 3
    ).reshape(-1, WIDTH),
    "convolution": lambda x, w: F.conv1d(x[:, None], w[:1, None, :3], padding=1).squeeze(1),
    "pooled": lambda x, w: F.max_pool1d(x[:, None], 2).repeat_interleave(2, -1).squeeze(1),
    "mean": lambda x, w: x - x.mean(-1, keepdim=True),
    "mean of rows": lambda x, w: x - x.mean(0),
    "variance": lambda x, w: x / (1 + x.var(-1, keepdim=True)),
    "largest": lambda x, w: x + x.amax(-1, keepdim=True),
    "parts": lambda x, w: torch.cat([x[:, 1:] * w[0, 0], x[:, :1]], 1),
    "stacked": lambda x, w: torch.stack([x, x @ w], 1).sum(1),
    "looked up": lambda x, w: F.embedding(x.detach().argmax(-1), w),
    "added at": lambda x, w: torch.zeros_like(x).scatter_add(1, x.detach().argsort(-1), x),
    "gathered": lambda x, w: x.gather(1, x.detach().argsort(-1)),
    "picked": lambda x, w: x[torch.arange(len(x)), x.detach().argmax(-1)][:, None] * w[0],
    "first row": lambda x, w: x + x[0],
    "cumulated": lambda x, w: x.cumsum(-1),
    "cumulated rows": lambda x, w: x.cumsum(0),
    "detached": lambda x, w: x.detach() * w[0],
    "flat": lambda x, w: (x.reshape(-1) * 2).view(-1, WIDTH),
    "squares of rows": lambda x, w: x * (x @ x.t()).diagonal()[:, None],
    "products of rows": lambda x, w: (x @ x.t()) @ x,
}
LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda x, m: (x.square().sum(-1) * m).sum() / m.sum(),
    "where": lambda x, m: torch.where(m[:, None], x.sin(), 0).sum(),
    "filled": lambda x, m: x.sin().masked_fill(~m[:, None], 0).sum(),
    "cross entropy": lambda x, m: (
        F.cross_entropy(x, x.detach().argmin(1), reduction="none") * m
    ).sum() / m.sum(),
    "squared": lambda x, m: (F.mse_loss(x, x.detach() + 1, reduction="none") * m[:, None]).sum(),
    "norm": lambda x, m: (x * m[:, None]).square().sum().sqrt(),
    "product": lambda x, m: ((x * m[:, None]).t() @ x).sin().sum(),
    "mask twice": lambda x, m: ((x * m[:, None]).sum(-1) * m).square().sum(),
    "mean": lambda x, m: (x.square() * m[:, None]).mean(),
    "no mask": lambda x, m: x.square().sum(),
    "count": lambda x, m: (x.square().sum(-1) * m).sum() / len(x),
}  # fmt: skip


def agree(names: list[str], loss: str) -> str:
    """Run both; ``"refused"``, ``"differs"``, or ``"runs"``."""
    x, weight = (torch.randn(n, WIDTH, dtype=torch.float64) for n in (ROWS, WIDTH))
    more = torch.cat([x, x[-1:].expand(PADDED - ROWS, WIDTH)])
    real = [x, weight, torch.ones(ROWS, dtype=torch.bool)]
    bigger = [more, weight, torch.arange(PADDED) < ROWS]

    def step(x: Any, weight: Any, mask: Any) -> Any:
        with torch.enable_grad():
            x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
            value = x
            for name in names:
                value = LAYERS[name](value, weight)
            total = LOSSES[loss](value, mask)
            found = torch.autograd.grad(total, [x, weight], allow_unused=True)
        gradients = [
            torch.zeros_like(leaf) if one is None else one
            for leaf, one in zip((x, weight), found, strict=True)
        ]
        return [total.detach(), value.detach() * 1, *gradients]

    programs = [support.build(step, *inputs) for inputs in (real, bigger)]
    try:
        cuts = analyse(*programs, mask="mask")
    except PaddingRefused:
        return "refused"
    except OtherProgram:
        return "differs"
    for cut, one, other in zip(cuts, step(*real), step(*bigger), strict=True):
        corner = other[tuple(slice(0, size) for size in cut.shape)]
        torch.testing.assert_close(corner, one, rtol=1e-9, atol=1e-9)
    return "runs"


@settings(max_examples=120, deadline=None, database=None)
@given(
    names=st.lists(st.sampled_from(list(LAYERS)), min_size=1, max_size=4),
    loss=st.sampled_from(list(LOSSES)),
)
def test_losses_and_gradients_are_as_they_are_without_padding(names: list[str], loss: str) -> None:
    agree(names, loss)


REFUSED = {
    "batch norm", "softmax of rows", "mean of rows", "cumulated rows", "squares of rows",
    "products of rows",
}  # fmt: skip


def test_each_layer_by_itself() -> None:
    torch.manual_seed(0)
    found = {name: agree(["linear", name, "linear"], "sum") for name in LAYERS}
    assert {name for name, how in found.items() if how != "runs"} == REFUSED


def test_each_loss_by_itself() -> None:
    torch.manual_seed(0)
    found = {name: agree(["linear"], name) for name in LOSSES}
    refused = {"mean", "no mask", "count"}
    assert {name for name, how in found.items() if how != "runs"} == refused
