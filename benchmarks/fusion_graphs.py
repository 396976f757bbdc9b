"""Whole Graphs with and without a fusion, over a decoder whose layers are written out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchgraph as tg
from torchgraph.passes import FuseAttention

VOCABULARY, WIDTH, HEADS, ROWS, BATCH, LAYERS = 96, 128, 4, 64, 8, 2


class Layer(nn.Module):
    """Attention with a product for each of q, k and v, then a gated feed-forward; no biases."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._attention(self.norms[0](x))
        y = self.norms[1](x)
        out: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return out

    def _attention(self, x: Tensor) -> Tensor:
        shape = (x.shape[0], x.shape[1], HEADS, WIDTH // HEADS)
        q, k, v = (linear(x).view(shape).transpose(1, 2) for linear in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(shape[-1]), -1)
        out: Tensor = self.out((weights @ v).transpose(1, 2).reshape(x.shape))
        return out


def decoder() -> nn.Module:
    """Tokens `(batch, rows)` into logits."""
    layers = [Layer() for _ in range(LAYERS)]
    head = nn.Linear(WIDTH, VOCABULARY, bias=False)
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *layers, nn.LayerNorm(WIDTH), head)


class _Train(tg.Graph):
    def __init__(self, fuse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = decoder()
        self.add_optimizer(torch.optim.AdamW(self.model.parameters(), lr=1e-4))
        self.config.allow_fuse_add_to_output(fuse)

    def build(self, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())
        loss.backward()
        return loss


class _Infer(tg.Graph):
    def __init__(self, fuse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = decoder().eval()
        if fuse:
            self.config.passes.insert(FuseAttention())

    def build(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits


def training() -> dict[str, Callable[[], Any]]:
    """One step: forward, backward and AdamW."""
    x, y = (torch.randint(VOCABULARY, (BATCH, ROWS)) for _ in range(2))
    plain, fused = _Train(False), _Train(True)

    def step(graph: _Train) -> Tensor:
        with torch.enable_grad():
            loss: Tensor = graph(x, y)
            return loss

    return {"as captured": lambda: step(plain), "fuse_add_to_output": lambda: step(fused)}


def inference() -> dict[str, Callable[[], Any]]:
    """One forward."""
    x = torch.randint(VOCABULARY, (BATCH, ROWS))
    plain, fused = _Infer(False), _Infer(True)
    return {"as captured": lambda: plain(x), "FuseAttention": lambda: fused(x)}
