"""Norms and batch norms as functions, by OneFlow's axes and defaults."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import NotPorted


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """OneFlow: ``nn.functional.layer_norm``; one of weight and bias without the other is unused."""
    if weight is None or bias is None:
        weight = bias = None
    return functional.layer_norm(input, list(normalized_shape), weight, bias, eps)


def layer_norm_from(
    x: Tensor, begin_norm_axis: int, begin_params_axis: int, epsilon: float
) -> Tensor:
    """The last dimensions, from one on, normalised. OneFlow: ``_C.layer_norm``."""
    return functional.layer_norm(x, x.shape[begin_norm_axis:], None, None, epsilon)


def layer_norm_affine(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    begin_norm_axis: int,
    begin_params_axis: int,
    epsilon: float,
) -> Tensor:
    """OneFlow: ``_C.layer_norm_affine``."""
    if begin_norm_axis % x.dim() != begin_params_axis % x.dim():
        raise NotPorted(
            f"layer_norm_affine: begin_norm_axis {begin_norm_axis} is not begin_params_axis "
            f"{begin_params_axis}, and OneFlow 0.9 takes only equal ones.",
            fix="pass the same axis twice.",
        )
    return functional.layer_norm(x, x.shape[begin_norm_axis:], gamma, beta, epsilon)


def rms_norm(
    x: Tensor, weight: Tensor | None, normalized_shape: Sequence[int], epsilon: float = 1e-6
) -> Tensor:
    """``x / sqrt(mean(x ** 2) + epsilon) * weight``. OneFlow: ``_C.rms_norm``."""
    return functional.rms_norm(x, list(normalized_shape), weight, epsilon)


def rms_layer_norm(hidden_states: Tensor, weight: Tensor, variance_epsilon: float) -> Tensor:
    """The same over the last dimension, float32 within. OneFlow: ``_C.rms_layer_norm``."""
    square = hidden_states.square().mean(-1, keepdim=True)
    normal = hidden_states.float() * torch.rsqrt(square + variance_epsilon)
    return (normal.half() if weight.dtype == torch.float16 else normal) * weight


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """OneFlow: ``nn.functional.batch_norm``; weight without bias, or bias alone, is unused."""
    if weight is None or bias is None:
        weight = bias = None
    return functional.batch_norm(
        input, running_mean, running_var, weight, bias, training, momentum, eps
    )


def normalization(
    x: Tensor,
    moving_mean: Tensor | None = None,
    moving_variance: Tensor | None = None,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    axis: int = 1,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    is_training: bool = False,
) -> Tensor:
    """Batch norm over all dimensions but the second. OneFlow: ``_C.normalization``.

    ``momentum`` weighs the batch, as in `batch_norm`; its default is 0.9.

    Raises:
        NotPorted: axis is not 1.
    """
    if axis != 1:
        raise NotPorted(f"normalization(axis={axis}) is not here.", fix="move the channels to 1.")
    return batch_norm(x, moving_mean, moving_variance, gamma, beta, is_training, momentum, epsilon)


def normalization_add_relu(
    x: Tensor,
    addend: Tensor | None = None,
    moving_mean: Tensor | None = None,
    moving_variance: Tensor | None = None,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    axis: int = 1,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    is_training: bool = False,
) -> Tensor:
    """``relu(normalization(x) + addend)``. OneFlow: ``_C.normalization_add_relu``."""
    normal = normalization(
        x, moving_mean, moving_variance, gamma, beta, axis, epsilon, momentum, is_training
    )
    return torch.relu(normal if addend is None else normal + addend)


def group_norm(
    x: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    affine: bool,
    num_groups: int,
    epsilon: float,
    data_format: str = "channels_first",
    activation: str = "none",
) -> Tensor:
    """OneFlow: ``_C.group_norm``, channels first; activation is none or silu."""
    if data_format != "channels_first" or activation not in ("none", "silu"):
        raise NotPorted(
            f"group_norm(data_format={data_format!r}, activation={activation!r}) is not here.",
            fix="use channels_first, and none or silu.",
        )
    weights = (gamma, beta) if affine else (None, None)
    normal = functional.group_norm(x, num_groups, *weights, eps=epsilon)
    return functional.silu(normal) if activation == "silu" else normal


def normalize(
    input: Tensor,
    p: float = 2.0,
    dim: int = 1,
    eps: float = 1e-12,
    use_l2_norm_kernel: bool = True,
) -> Tensor:
    """OneFlow: ``nn.functional.normalize``; for p = 2 eps is the least *square* of the norm."""
    if use_l2_norm_kernel and p == 2.0:
        square = input.square().sum(dim, keepdim=True)
        return input * torch.rsqrt(square.clamp_min(eps))
    return functional.normalize(input, p, dim, eps)
