"""`torch.nn.SyncBatchNorm` by functional collectives: on any device, and recorded."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from .._torch.distributed import collectives


def may_sync() -> bool:
    """True where there are other ranks to share statistics with."""
    return dist.is_available() and dist.is_initialized()


def forward(module: nn.SyncBatchNorm, input: torch.Tensor) -> torch.Tensor:
    """The result of ``module(input)``, with mean and variance shared over its process group.

    Args:
        input: ``(N, C, ...)``. Source: torch/nn/modules/batchnorm.py, SyncBatchNorm.forward.
    """
    if input.dim() < 2:
        raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")
    if input.size(1) == 0:
        raise ValueError("SyncBatchNorm number of input channels should be non-zero")
    factor = 0.0 if module.momentum is None else module.momentum
    if module.training and module.track_running_stats:
        assert module.num_batches_tracked is not None
        module.num_batches_tracked.add_(1)
        if module.momentum is None:
            factor = 1.0 / module.num_batches_tracked.item()
    by_batch = module.training or (module.running_mean is None and module.running_var is None)
    tracked = not module.training or module.track_running_stats
    mean = module.running_mean if tracked else None
    var = module.running_var if tracked else None
    group: Any = module.process_group or dist.group.WORLD
    ranks = dist.get_world_size(group)
    if not (module.training and ranks > 1):
        return functional.batch_norm(
            input, mean, var, module.weight, module.bias, by_batch, factor, module.eps
        )
    synced: Any = _SyncBatchNorm
    found: torch.Tensor = synced.apply(
        input, module.weight, module.bias, mean, var, module.eps, factor, group.group_name, ranks
    )
    return found


class _SyncBatchNorm(torch.autograd.Function):
    """Batch norm with shared statistics, in float32, or in float64 for a float64 input."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        eps: float,
        factor: float,
        group: str,
        ranks: int,
    ) -> torch.Tensor:
        """Normalize by statistics weighted by batch sizes, which may differ between ranks."""
        values, dims = _wide(input), _but_channels(input)
        channels = input.shape[1]
        var, mean = torch.var_mean(values, dims, correction=0)
        count = torch.full_like(mean[:1], input.numel() // channels)
        own = torch.cat([mean, var, count]).view(1, -1)
        means, variances, counts = collectives.gathered(own, ranks, group).split(
            [channels, channels, 1], 1
        )
        total = counts.sum()
        mean = (means * counts).sum(0) / total
        var = ((variances + (means - mean).square()) * counts).sum(0) / total
        if running_mean is not None and running_var is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), factor)
            unbiased = var * (total / (total - 1))
            running_var.lerp_(unbiased.to(running_var.dtype), factor)
        scale = torch.rsqrt(var + eps)
        ctx.save_for_backward(input, weight, mean, scale, total)
        ctx.group = group
        out = (values - _along(mean, input)) * _along(scale, input)
        if weight is not None:
            out = out * _along(weight, input)
        if bias is not None:
            out = out + _along(bias, input)
        return out.to(input.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Gradients; those of weight and bias are of this rank, and data parallel averages them."""
        input, weight, mean, scale, total = ctx.saved_tensors
        dims = _but_channels(input)
        gradient = _wide(gradients[0])
        centred = _wide(input) - _along(mean, input)
        sums = torch.cat([gradient.sum(dims), (gradient * centred).sum(dims)])
        wanted = ctx.needs_input_grad
        own, own_centred = sums.split(input.shape[1])
        found = None
        if wanted[0]:
            both = collectives.wait(collectives.begin_sum(sums, ctx.group)) / total
            all_, all_centred = both.split(input.shape[1])
            found = gradient - _along(all_, input)
            found = found - centred * _along(scale.square() * all_centred, input)
            factor = scale if weight is None else scale * weight
            found = (found * _along(factor, input)).to(input.dtype)
        for_weight = (own_centred * scale).to(weight.dtype) if wanted[1] else None
        for_bias = own.to(gradients[0].dtype if weight is None else weight.dtype)
        return found, for_weight, for_bias if wanted[2] else None, *[None] * 6


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _but_channels(input: torch.Tensor) -> list[int]:
    return [dim for dim in range(input.dim()) if dim != 1]


def _along(channels: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    """``(C,)`` as ``(1, C, 1, ...)``, to broadcast along the channel dimension."""
    return channels.view(1, -1, *[1] * (input.dim() - 2))
