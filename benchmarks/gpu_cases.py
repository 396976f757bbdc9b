"""Models of the sizes that people train on one GPU: too large for the CPU's list."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.models import GPT

from .work import Case, Work, next_token


class _Bottleneck(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        inner = outputs // 4
        self.body = nn.Sequential(
            nn.Conv2d(inputs, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, inner, 3, stride, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.way: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            way = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.way = nn.Sequential(way, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.way(x))


def resnet50(classes: int = 1000) -> nn.Module:
    """16 bottleneck blocks in four stages (He et al., 2016), for 224x224 images."""
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers: list[nn.Module] = [*stem, nn.MaxPool2d(3, 2, 1)]
    widths, counts = (64, 256, 512, 1024, 2048), (3, 4, 6, 3)
    for stage, (inputs, outputs) in enumerate(pairwise(widths)):
        layers.append(_Bottleneck(inputs, outputs, 2 if stage else 1))
        layers += [_Bottleneck(outputs, outputs, 1) for _ in range(counts[stage] - 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, classes))


class _ViT(nn.Module):
    """An encoder over patches of 16x16 and a class token (Dosovitskiy et al., 2021)."""

    def __init__(self, width: int, layers: int, heads: int, classes: int = 1000) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, 197, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.places
        logits: Tensor = self.head(self.norm(self.encoder(x))[:, 0])
        return logits


class _Bert(nn.Module):
    """12 encoder layers with their norms last, and a head for masked words."""

    def __init__(self, vocabulary: int = 30522, width: int = 768, length: int = 512) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 12, 4 * width, 0.0, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.tokens(ids) + self.places.weight[: ids.shape[1]])
        logits: Tensor = self.head(self.encoder(x))
        return logits


def _images(model: nn.Module, batch: int) -> Work:
    x, y = torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,))
    return Work(model, x, y, F.cross_entropy)


def _text(model: nn.Module, batch: int, length: int, vocabulary: int) -> Work:
    ids = torch.randint(vocabulary, (batch, length + 1))
    return Work(model, ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), next_token)


def _gpt2() -> nn.Module:
    return GPT(50257, block_size=1024, layers=12, width=768, heads=12, dropout=0.0)


GPU_CASES = (
    Case(
        "vit_tiny", "12 layers, width 192, 224x224, batch 8", lambda: _images(_ViT(192, 12, 3), 8)
    ),
    Case("resnet50", "224x224, batch 32", lambda: _images(resnet50(), 32)),
    Case("resnet50_256", "224x224, batch 256", lambda: _images(resnet50(), 256)),
    Case("gpt2", "124M parameters, 1024 tokens, batch 8", lambda: _text(_gpt2(), 8, 1024, 50257)),
    Case("bert_base", "128 tokens, batch 32", lambda: _text(_Bert(), 32, 128, 30522)),
)
