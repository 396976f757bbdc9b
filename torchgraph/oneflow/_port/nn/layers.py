"""Layers whose arguments OneFlow reads in another way: padding, divisors, addends."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Generator, Tensor, nn

from ..errors import NotPorted
from ..ops import dropping, fused, pooling


def same_padding(
    padding: Any, kernel_size: Any, stride: Any, dilation: Any, dimensions: int
) -> Any:
    """What OneFlow makes of padding "same" and "valid": numbers.

    Half of what the kernel reaches over, rounded down: the result of an even kernel is smaller
    than its input. The halves are in the order of the last dimension first, also for a kernel
    that is not square.
    """
    if not isinstance(padding, str):
        return padding
    kernels, dilations = (_each(one, dimensions) for one in (kernel_size, dilation))
    if padding == "valid":
        return (0,) * dimensions
    if padding != "same" or any(one != 1 for one in _each(stride, dimensions)):
        raise ValueError(f"padding {padding!r} with stride {stride}: it is valid, or same with 1.")
    reached = zip(kernels, dilations, strict=True)
    return tuple(step * (kernel - 1) // 2 for kernel, step in reached)[::-1]


def _each(value: Any, dimensions: int) -> tuple[int, ...]:
    return (value,) * dimensions if isinstance(value, int) else tuple(value)


class Conv1d(nn.Conv1d):
    """OneFlow: ``nn.Conv1d``; for padding "same" see `same_padding`."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        padding = same_padding(padding, kernel_size, stride, dilation, 1)
        sizes = (kernel_size, stride, padding, dilation)
        super().__init__(in_channels, out_channels, *sizes, *args, **_zeros(args, kwargs))


class Conv2d(nn.Conv2d):
    """OneFlow: ``nn.Conv2d``; for padding "same" see `same_padding`."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        padding = same_padding(padding, kernel_size, stride, dilation, 2)
        sizes = (kernel_size, stride, padding, dilation)
        super().__init__(in_channels, out_channels, *sizes, *args, **_zeros(args, kwargs))


class Conv3d(nn.Conv3d):
    """OneFlow: ``nn.Conv3d``; for padding "same" see `same_padding`."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        padding = same_padding(padding, kernel_size, stride, dilation, 3)
        sizes = (kernel_size, stride, padding, dilation)
        super().__init__(in_channels, out_channels, *sizes, *args, **_zeros(args, kwargs))


def _zeros(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The options of a convolution, of which OneFlow pads with zeros only."""
    mode = args[2] if len(args) > 2 else kwargs.get("padding_mode", "zeros")
    if mode != "zeros":
        raise NotPorted(f"padding_mode={mode!r} is not in OneFlow.", fix="pad before it.")
    return kwargs


class AvgPool2d(nn.AvgPool2d):
    """OneFlow: ``nn.AvgPool2d``; a divisor_override of 0 is none."""

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int = 0,
    ) -> None:
        options = (ceil_mode, count_include_pad, int(divisor_override) or None)
        super().__init__(kernel_size, stride, padding, *options)


class AvgPool3d(nn.AvgPool3d):
    """OneFlow: ``nn.AvgPool3d``; a divisor_override of 0 is none."""

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int = 0,
    ) -> None:
        options = (ceil_mode, count_include_pad, int(divisor_override) or None)
        super().__init__(kernel_size, stride, padding, *options)


class ConstantPad1d(nn.ConstantPad1d):
    """OneFlow: ``nn.ConstantPad1d``, whose value is 0 when not given."""

    def __init__(self, padding: Any, value: float = 0) -> None:
        super().__init__(padding, value)


class ConstantPad2d(nn.ConstantPad2d):
    """OneFlow: ``nn.ConstantPad2d``, whose value is 0 when not given."""

    def __init__(self, padding: Any, value: float = 0) -> None:
        super().__init__(padding, value)


class ConstantPad3d(nn.ConstantPad3d):
    """OneFlow: ``nn.ConstantPad3d``, whose value is 0 when not given."""

    def __init__(self, padding: Any, value: float = 0) -> None:
        super().__init__(padding, value)


class PixelShuffle(nn.Module):
    """OneFlow: ``nn.PixelShuffle``, of one factor or of one for height and one for width."""

    def __init__(
        self,
        upscale_factor: int | None = None,
        h_upscale_factor: int | None = None,
        w_upscale_factor: int | None = None,
    ) -> None:
        super().__init__()
        factors = (h_upscale_factor, w_upscale_factor)
        if (upscale_factor is None) == (None in factors) or (upscale_factor and any(factors)):
            raise ValueError("give upscale_factor, or h_upscale_factor and w_upscale_factor.")
        self.h_upscale_factor = upscale_factor or h_upscale_factor or 0
        self.w_upscale_factor = upscale_factor or w_upscale_factor or 0

    def forward(self, input: Tensor) -> Tensor:
        return pooling.pixel_shuffle(input, self.h_upscale_factor, self.w_upscale_factor)

    def extra_repr(self) -> str:
        return f"w_upscale_factor={self.w_upscale_factor}, h_upscale_factor={self.h_upscale_factor}"


class Dropout(nn.Dropout):
    """OneFlow: ``nn.Dropout``: a generator of its own, an addend in the call.

    In place it writes its result into its argument where no gradient is recorded. Where one is,
    the argument keeps its values, which the gradient of what made it may need: use the result.
    """

    def __init__(
        self, p: float = 0.5, inplace: bool = False, generator: Generator | None = None
    ) -> None:
        super().__init__(p, inplace)
        self.generator = generator

    def forward(self, x: Tensor, addend: Tensor | None = None) -> Tensor:
        result = dropping.dropout(x, self.p, self.training, generator=self.generator, addend=addend)
        recorded = torch.is_grad_enabled() and x.requires_grad
        return x.copy_(result) if self.inplace and not recorded else result


class FusedMLP(nn.Module):
    """Linear layers with ReLU and dropout. OneFlow: ``nn.FusedMLP``.

    Args:
        in_features: the size of the last dimension of the input.
        hidden_features: the sizes of the hidden layers; none are fine.
        out_features: the size of the result.
        hidden_dropout_rate: the rate of dropout after each hidden layer.
        out_dropout_rate: the rate after the last.
        skip_final_activation: whether the last layer has no ReLU.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: Sequence[int],
        out_features: int,
        hidden_dropout_rate: Sequence[float] | None = None,
        out_dropout_rate: float = 0.0,
        skip_final_activation: bool = False,
    ) -> None:
        super().__init__()
        self.in_features, self.hidden_features = in_features, hidden_features
        self.out_features, self.skip_final_activation = out_features, skip_final_activation
        self.hidden_layer_num = len(hidden_features)
        hidden = hidden_dropout_rate or [0.0] * self.hidden_layer_num
        self.dropout_rate_list = [*hidden, out_dropout_rate]
        sizes = [in_features, *hidden_features, out_features]
        for k, (before, after) in enumerate(pairwise(sizes)):
            for name, value in nn.Linear(before, after).named_parameters():
                self.register_parameter(f"{name}_{k}", value)

    def weights(self) -> list[Tensor]:
        """The weights of the layers, in order."""
        return [self.get_parameter(f"weight_{k}") for k in range(self.hidden_layer_num + 1)]

    def biases(self) -> list[Tensor]:
        """The biases of the layers, in order."""
        return [self.get_parameter(f"bias_{k}") for k in range(self.hidden_layer_num + 1)]

    def forward(self, x: Tensor) -> Tensor:
        rates = self.dropout_rate_list if self.training else [0.0] * len(self.dropout_rate_list)
        return fused.fused_matmul_bias_add_relu_dropout(
            x, self.weights(), self.biases(), self.skip_final_activation, rates
        )

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, hidden_features={self.hidden_features}, "
            f"out_features={self.out_features}, "
            f"skip_final_activation={self.skip_final_activation}"
        )
