"""Norm modules: instance norms without memory, fused batch norms, RMS norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..ops import normalization


def _instance_norm(x: Tensor, module: Any, dimensions: int) -> Tensor:
    """By the statistics of each instance: the running ones are kept, and never read."""
    if x.dim() != dimensions:
        raise ValueError(f"expected {dimensions}D input (got {x.dim()}D input)")
    return functional.instance_norm(
        x, weight=module.weight, bias=module.bias, use_input_stats=True, eps=module.eps
    )


class InstanceNorm1d(nn.InstanceNorm1d):
    """OneFlow: ``nn.InstanceNorm1d``; running statistics are neither updated nor used."""

    def forward(self, input: Tensor) -> Tensor:
        return _instance_norm(input, self, 3)


class InstanceNorm2d(nn.InstanceNorm2d):
    """OneFlow: ``nn.InstanceNorm2d``; running statistics are neither updated nor used."""

    def forward(self, input: Tensor) -> Tensor:
        return _instance_norm(input, self, 4)


class InstanceNorm3d(nn.InstanceNorm3d):
    """OneFlow: ``nn.InstanceNorm3d``; running statistics are neither updated nor used."""

    def forward(self, input: Tensor) -> Tensor:
        return _instance_norm(input, self, 5)


class _FusedBatchNorm(nn.Module):
    """``relu(batch_norm(x) + addend)``; it counts no batches."""

    running_mean: Tensor | None
    running_var: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    momentum: float
    _dimensions: tuple[int, ...]

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        for name, fill in (("weight", torch.ones), ("bias", torch.zeros)):
            value = nn.Parameter(fill(num_features)) if affine else None
            self.register_parameter(name, value)
        for name, fill in (("running_mean", torch.zeros), ("running_var", torch.ones)):
            self.register_buffer(name, fill(num_features) if track_running_stats else None)

    def forward(self, x: Tensor, addend: Tensor | None = None) -> Tensor:
        if x.dim() not in self._dimensions:
            wanted = " or ".join(f"{one}D" for one in self._dimensions)
            raise ValueError(f"expected {wanted} input (got {x.dim()}D input)")
        training = self.training or self.running_mean is None
        return normalization.normalization_add_relu(
            x,
            addend,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            epsilon=self.eps,
            momentum=self.momentum,
            is_training=training,
        )

    def extra_repr(self) -> str:
        return (
            f"num_features={self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine}, track_running_stats={self.track_running_stats}"
        )


class FusedBatchNorm1d(_FusedBatchNorm):
    """``relu(batch_norm(x) + addend)`` of (N, C) or (N, C, L). OneFlow: the same name."""

    _dimensions = (2, 3)


class FusedBatchNorm2d(_FusedBatchNorm):
    """``relu(batch_norm(x) + addend)`` of (N, C, H, W). OneFlow: the same name."""

    _dimensions = (4,)


class FusedBatchNorm3d(_FusedBatchNorm):
    """``relu(batch_norm(x) + addend)`` of (N, C, D, H, W). OneFlow: the same name."""

    _dimensions = (5,)


class RMSNorm(nn.RMSNorm):
    """OneFlow: ``nn.RMSNorm``, whose eps is 1e-5; torch's is the dtype's smallest step."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        shape = normalized_shape if isinstance(normalized_shape, int) else list(normalized_shape)
        super().__init__(shape, eps, elementwise_affine, device=device, dtype=dtype)


class RMSLayerNorm(nn.Module):
    """``x / sqrt(mean(x ** 2) + eps) * weight`` over the last dimension. OneFlow: the same name."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        return normalization.rms_layer_norm(hidden_states, self.weight, self.variance_epsilon)
