"""Modules that resize: by factors with OneFlow's places of pixels."""

from __future__ import annotations

from torch import Tensor, nn

from ..ops.resizing import interpolate


class Upsample(nn.Upsample):
    """OneFlow: ``nn.Upsample``; which factors are refused says `interpolate`."""

    def forward(self, input: Tensor) -> Tensor:
        return interpolate(input, self.size, self.scale_factor, self.mode, self.align_corners)


class UpsamplingNearest2d(nn.UpsamplingNearest2d):
    """OneFlow: ``nn.UpsamplingNearest2d``; which factors are refused says `interpolate`."""

    def forward(self, input: Tensor) -> Tensor:
        return interpolate(input, self.size, self.scale_factor, self.mode)


class UpsamplingBilinear2d(nn.UpsamplingBilinear2d):
    """OneFlow: ``nn.UpsamplingBilinear2d``; which factors are refused says `interpolate`."""

    def forward(self, input: Tensor) -> Tensor:
        return interpolate(input, self.size, self.scale_factor, self.mode, True)
