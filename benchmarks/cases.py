"""What is trained: a model, a batch and a loss, made anew for each contender from one seed."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.models import GPT, MobileNetV2

from .gpu_cases import GPU_CASES
from .large_cases import LARGE_CASES
from .launch_cases import LAUNCH_CASES
from .work import Case, Work, next_token


def mlp(layers: int, *, inputs: int = 64, width: int = 128, classes: int = 10) -> nn.Module:
    """``layers`` linear layers with ReLU between them."""
    sizes = [inputs, *[width] * (layers - 1), classes]
    linears = [nn.Linear(a, b) for a, b in pairwise(sizes)]
    parts = [part for linear in linears for part in (linear, nn.ReLU())]
    return nn.Sequential(*parts[:-1])


def conv6() -> nn.Module:
    """Six 3x3 convolutions, each with ReLU; every second one halves the image."""
    channels = [3, 16, 16, 32, 32, 64, 64]
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise(channels)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=1 + index % 2, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def mobilenet(features: int = 19, *, width: float = 0.5) -> nn.Module:
    """MobileNetV2 for 32x32 images, cut after so many of its 19 features."""
    model = MobileNetV2(10, width=width, stem_strides=(1, 1))
    if features < len(model.features):
        model.features = nn.Sequential(*list(model.features)[:features])
        norms = [m for m in model.features.modules() if isinstance(m, nn.BatchNorm2d)]
        model.classifier[1] = nn.Linear(norms[-1].num_features, 10)
    return model


def dense(model: nn.Module, *, batch: int, inputs: int, classes: int = 10) -> Work:
    """Rows of numbers into classes."""
    labels = torch.randint(classes, (batch,))
    return Work(model, torch.randn(batch, inputs), labels, F.cross_entropy)


def images(model: nn.Module, *, batch: int, size: int = 32) -> Work:
    """Colour images into ten classes."""
    labels = torch.randint(10, (batch,))
    return Work(model, torch.randn(batch, 3, size, size), labels, F.cross_entropy)


def _text(batch: int = 8) -> Work:
    # Without dropout, as one pretrains: all contenders then compute the same losses.
    vocabulary, length = 96, 64
    tokens = torch.randint(vocabulary, (batch, length + 1))
    model = GPT(vocabulary, block_size=length, layers=4, width=128, dropout=0.0)
    return Work(model, tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), next_token)


def _bert(batch: int = 8) -> Work:
    """An encoder with its norms last, as in BERT, and a classifier on the first token."""
    vocabulary, length, width = 1000, 64, 128
    tokens = torch.randint(vocabulary, (batch, length))
    labels = torch.randint(2, (batch,))
    layer = nn.TransformerEncoderLayer(
        width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True
    )
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(vocabulary, width), encoder, _First(), nn.Linear(width, 2))
    return Work(model, tokens, labels, F.cross_entropy)


class _Recurrent(nn.Module):
    """Two layers of LSTM over embedded tokens, and a linear layer to the next one."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(self.embedding(tokens))[0])
        return logits


def _lstm() -> Work:
    vocabulary, length = 96, 32
    tokens = torch.randint(vocabulary, (16, length + 1))
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return Work(_Recurrent(vocabulary, 128), x, y, next_token)


class _First(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


class _Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.way = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.way(x))


def resnet18(width: int = 16) -> nn.Module:
    """Eight residual blocks of two convolutions (He et al., 2016), for 32x32 images."""
    widths = [width, width, 2 * width, 4 * width, 8 * width]
    blocks: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise(widths)):
        stride = 2 if index else 1
        blocks += [_Residual(inputs, outputs, stride), _Residual(outputs, outputs, 1)]
    stem = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10)]
    return nn.Sequential(*stem, *blocks, *head)


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case(
            "mlp", "3 layers, 64-128-128-10, batch 32", lambda: dense(mlp(3), batch=32, inputs=64)
        ),
        Case("conv6", "6 convolutions, 3x32x32, batch 32", lambda: images(conv6(), batch=32)),
        Case("mobilenet_v2", "width 0.5, 3x32x32, batch 16", lambda: images(mobilenet(), batch=16)),
        Case("gpt", "4 layers, width 128, 64 tokens, batch 8", _text),
        Case("bert", "encoder, 4 layers, width 128, 64 tokens, batch 8", _bert),
        Case("resnet18", "width 16, 3x32x32, batch 16", lambda: images(resnet18(), batch=16)),
        Case("lstm", "2 layers, width 128, 32 tokens, batch 16", _lstm),
        Case("mlp_batch_1", "as mlp, batch 1", lambda: dense(mlp(3), batch=1, inputs=64)),
        Case("conv6_batch_1", "as conv6, batch 1", lambda: images(conv6(), batch=1)),
        Case("gpt_batch_1", "as gpt, batch 1", lambda: _text(1)),
        Case("mlp_batch_4", "as mlp, batch 4", lambda: dense(mlp(3), batch=4, inputs=64)),
        Case("conv6_batch_4", "as conv6, batch 4", lambda: images(conv6(), batch=4)),
        Case("gpt_batch_4", "as gpt, batch 4", lambda: _text(4)),
        Case(
            "mlp_wide",
            "3 layers, 784-1024-1024-10, batch 32",
            lambda: dense(mlp(3, inputs=784, width=1024), batch=32, inputs=784),
        ),
        *LARGE_CASES,
        *GPU_CASES,
        *LAUNCH_CASES,
    )
}
SMALL = ("mlp", "conv6", "mobilenet_v2", "gpt")
SIX = (*SMALL, "bert", "resnet18")
BATCH_1_TO_4 = ("mlp_batch_1", "conv6_batch_1", "gpt_batch_1", "gpt_batch_4")
LARGE = tuple(case.name for case in LARGE_CASES)
DEFAULT = (*SIX, *BATCH_1_TO_4, *LARGE)
GPU_DEFAULT = ("mlp", *(case.name for case in GPU_CASES))
