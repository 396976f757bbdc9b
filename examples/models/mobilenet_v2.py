"""MobileNetV2 (Sandler et al., 2018): inverted residuals with linear bottlenecks."""

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Stage(NamedTuple):
    """One row of the paper's table 2: how wide the expansion is, then channels, blocks, stride."""

    expand: int
    channels: int
    blocks: int
    stride: int


STAGES = (
    Stage(1, 16, 1, 1),
    Stage(6, 24, 2, 2),
    Stage(6, 32, 3, 2),
    Stage(6, 64, 4, 2),
    Stage(6, 96, 3, 1),
    Stage(6, 160, 3, 2),
    Stage(6, 320, 1, 1),
)
STEM_CHANNELS = 32
HEAD_CHANNELS = 1280


def round_channels(channels: float, divisor: int = 8) -> int:
    """The nearest multiple of `divisor`, never more than 10 % below `channels`."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded


class ConvNorm(nn.Sequential):
    """Convolution, batch norm and, unless it is a linear bottleneck, ReLU6."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        activation: bool = True,
    ) -> None:
        layers: list[nn.Module] = [
            nn.Conv2d(
                inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False
            ),
            nn.BatchNorm2d(outputs),
        ]
        if activation:
            layers.append(nn.ReLU6(inplace=True))
        super().__init__(*layers)


class InvertedResidual(nn.Module):
    """Expand 1x1, filter each channel 3x3, project 1x1; add the input where the shapes agree."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        layers: list[nn.Module] = [] if expand == 1 else [ConvNorm(inputs, hidden)]
        layers.append(ConvNorm(hidden, hidden, kernel=3, stride=stride, groups=hidden))
        layers.append(ConvNorm(hidden, outputs, activation=False))
        self.layers = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


class MobileNetV2(nn.Module):
    """The standard network, with a width multiplier and the first two strides as arguments.

    `stem_strides` are the strides of the first convolution and of the first stage that halves
    the image: (2, 2) for 224x224 photographs, (1, 1) for images of 32x32.
    """

    def __init__(
        self,
        classes: int = 1000,
        *,
        width: float = 1.0,
        stem_strides: tuple[int, int] = (2, 2),
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        channels = round_channels(STEM_CHANNELS * width)
        layers: list[nn.Module] = [ConvNorm(3, channels, kernel=3, stride=stem_strides[0])]
        for index, stage in enumerate(STAGES):
            outputs = round_channels(stage.channels * width)
            first_stride = stem_strides[1] if index == 1 else stage.stride
            for block in range(stage.blocks):
                stride = first_stride if block == 0 else 1
                layers.append(
                    InvertedResidual(channels, outputs, stride=stride, expand=stage.expand)
                )
                channels = outputs
        head = round_channels(HEAD_CHANNELS * max(1.0, width))
        layers.append(ConvNorm(channels, head))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(head, classes))
        self.apply(init_weights)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


def init_weights(module: nn.Module) -> None:
    """The paper's initialisation: He normal for convolutions, N(0, 0.01) for the classifier."""
    with torch.no_grad():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, 0.01)
            nn.init.zeros_(module.bias)
