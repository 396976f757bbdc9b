"""Activation modules: which of OneFlow's work in place, softmax without a dimension."""

from __future__ import annotations

from torch import Tensor, nn

from ..errors import NotPorted
from ..ops import activations, later


class Softmax(nn.Softmax):
    """OneFlow: ``nn.Softmax``; without ``dim`` it warns of nothing."""

    def forward(self, input: Tensor) -> Tensor:
        return activations.softmax(input, self.dim)


class LogSoftmax(nn.LogSoftmax):
    """OneFlow: ``nn.LogSoftmax``; without ``dim`` it warns of nothing."""

    def forward(self, input: Tensor) -> Tensor:
        return activations.log_softmax(input, self.dim)


class ELU(nn.ELU):
    """OneFlow: ``nn.ELU``, which never works in place."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.elu(input, self.alpha)


class Hardswish(nn.Hardswish):
    """OneFlow: ``nn.Hardswish``, which never works in place."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.hardswish(input)


class Hardtanh(nn.Hardtanh):
    """OneFlow: ``nn.Hardtanh``, which never works in place."""

    def forward(self, input: Tensor) -> Tensor:
        return activations.hardtanh(input, self.min_val, self.max_val)


class ReLU6(nn.ReLU6):
    """OneFlow: ``nn.ReLU6``, which never works in place."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.relu6(input)


class Mish(nn.Mish):
    """OneFlow: ``nn.Mish``, which never works in place."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.mish(input)


class SELU(nn.SELU):
    """OneFlow: ``nn.SELU``, which never works in place."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.selu(input)


class SiLU(nn.SiLU):
    """OneFlow: ``nn.SiLU``, which never works in place."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.silu(input)


class Softsign(nn.Softsign):
    """OneFlow: ``nn.Softsign(inplace)``, which never works in place."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace


class CELU(nn.CELU):
    """OneFlow: ``nn.CELU``.

    Raises:
        NotPorted: in place. OneFlow 0.9 then takes the gradient at the result, which is wrong.
    """

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        if inplace:
            raise NotPorted(
                "CELU in place has a wrong gradient in OneFlow 0.9.", fix="leave inplace out."
            )
        super().__init__(alpha)


class Hardshrink(nn.Hardshrink):
    """OneFlow: ``nn.Hardshrink(lambd, inplace)``."""

    def __init__(self, lambd: float = 0.5, inplace: bool = False) -> None:
        super().__init__(lambd)
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return activations.hardshrink(input, lambd=self.lambd, inplace=self.inplace)


class Softshrink(nn.Softshrink):
    """OneFlow: ``nn.Softshrink(lambd, inplace)``."""

    def __init__(self, lambd: float = 0.5, inplace: bool = False) -> None:
        super().__init__(lambd)
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return activations.softshrink(input, alpha=self.lambd, inplace=self.inplace)


class QuickGELU(nn.Module):
    """``x * sigmoid(1.702 x)``. OneFlow: ``nn.QuickGELU``."""

    def forward(self, x: Tensor) -> Tensor:
        return activations.quick_gelu(x)


class SquareReLU(nn.Module):
    """``relu(x)`` squared. OneFlow: ``nn.SquareReLU``, of 1.0."""

    def forward(self, input: Tensor) -> Tensor:
        return later.square_relu(input)
