"""cuDNN's batch norm on the CPU: what stands in for it computes with ATen's kernel there.

Beside the statistics it returns what its backward pass is to get: bytes whose number no fake kernel
knows.
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten
KEPT = 3
"""How many bytes those are."""


def _forward(x: Any, weight: Any, bias: Any, mean: Any, *rest: Any) -> Any:
    training = rest[1]
    found = aten.native_batch_norm(x, weight, bias, mean, *rest)
    # On the CPU _batch_norm_with_update, which takes statistics, keeps nothing beside them.
    kept = KEPT if training and mean is None else 0
    return *found, x.new_zeros(kept, dtype=torch.uint8)


def _backward(x: Any, grad: Any, weight: Any, mean: Any, *rest: Any) -> Any:
    *statistics, eps, kept = rest
    assert kept.numel() == (KEPT if mean is None else 0)
    given = (grad, x, weight, mean, *statistics)
    return aten.native_batch_norm_backward(*given, True, eps, [True] * 3)


_LIBRARY = torch.library.Library("aten", "IMPL")
_LIBRARY.impl("cudnn_batch_norm", _forward, "CPU")
_LIBRARY.impl("cudnn_batch_norm_backward", _backward, "CPU")


class BatchNorm(torch.nn.BatchNorm2d):
    """The module, by cuDNN: what ``nn.BatchNorm2d`` is on a GPU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` normalized."""
        batch = self.training or self.running_mean is None
        states = (self.weight, self.bias, self.running_mean, self.running_var)
        return torch.cudnn_batch_norm(x, *states, batch, self.momentum, self.eps)[0]


class InstanceNorm(BatchNorm):
    """``nn.InstanceNorm2d(affine=True)``, as torch computes it: the images are more channels."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, track_running_stats=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` normalized, image by image."""
        n, c, *size = x.shape
        states = (self.weight.repeat(n), self.bias.repeat(n), None, None)
        rows = x.reshape(1, n * c, *size)
        return torch.cudnn_batch_norm(rows, *states, True, 0.1, self.eps)[0].view(n, c, *size)
