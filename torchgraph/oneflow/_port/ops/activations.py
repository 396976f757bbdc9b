"""Activations: OneFlow's names of arguments, softmax without a dimension, in place or not."""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn import functional

from ..errors import NotPorted
from ..tensors.elementwise.arithmetic import is_differentiated


def implicit_dim(x: Tensor) -> int:
    """The dimension that OneFlow's softmax takes when none is given: 0 for 0, 1, 3 dimensions."""
    return 0 if x.dim() in (0, 1, 3) else 1


def softmax(x: Tensor, dim: int | None = None) -> Tensor:
    """OneFlow: ``nn.functional.softmax``; without ``dim`` it warns of nothing."""
    return torch.softmax(x, implicit_dim(x) if dim is None else dim)


def log_softmax(x: Tensor, dim: int | None = None) -> Tensor:
    """OneFlow: ``nn.functional.log_softmax``; without ``dim`` it warns of nothing."""
    return torch.log_softmax(x, implicit_dim(x) if dim is None else dim)


def hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """OneFlow: ``nn.functional.hardtanh``.

    Raises:
        NotPorted: for a gradient of float64 with bounds that float32 does not hold, with which
            OneFlow 0.9 gives a gradient outside of them, too.
    """
    is_exact = all(torch.tensor(b, dtype=torch.float32).item() == b for b in (min_val, max_val))
    if input.dtype == torch.float64 and is_differentiated(input) and not is_exact:
        raise NotPorted(
            "The gradient of hardtanh of float64 with these bounds is wrong in OneFlow 0.9.",
            fix="flow.clamp(x, min_val, max_val).",
        )
    return functional.hardtanh(input, min_val, max_val, inplace)


def gumbel_softmax(
    x: Tensor,
    tau: float = 1.0,
    dim: int | None = None,
    hard: bool = False,
    generator: Generator | None = None,
) -> Tensor:
    """OneFlow: ``nn.functional.gumbel_softmax``; without ``dim`` as `softmax`."""
    if generator is not None:
        raise NotPorted(
            "gumbel_softmax(generator=) is not here.", fix="seed with manual_seed instead."
        )
    axis = implicit_dim(x) if dim is None else dim
    return functional.gumbel_softmax(x, tau=tau, hard=hard, dim=axis)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """OneFlow: ``nn.functional.gelu``, ``_C.gelu_with_approximate``."""
    return functional.gelu(x, approximate=approximate)


def quick_gelu(x: Tensor) -> Tensor:
    """``x * sigmoid(1.702 x)``. OneFlow: ``nn.functional.quick_gelu``."""
    return x * torch.sigmoid(1.702 * x)


def fast_gelu(x: Tensor) -> Tensor:
    """GELU by tanh. OneFlow: ``_C.fast_gelu``."""
    return functional.gelu(x, approximate="tanh")


def fused_fast_gelu_mul(x: Tensor, multiplier: Tensor) -> Tensor:
    """``fast_gelu(x) * multiplier``. OneFlow: ``_C.fused_fast_gelu_mul``."""
    return fast_gelu(x) * multiplier


def leaky_relu(x: Tensor, alpha: float, inplace: bool = False) -> Tensor:
    """OneFlow: ``nn.functional.leaky_relu``; torch says ``negative_slope``."""
    return functional.leaky_relu(x, negative_slope=alpha, inplace=inplace)


def celu(x: Tensor, *, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """OneFlow: ``nn.functional.celu``.

    Raises:
        NotPorted: in place. OneFlow 0.9 then takes the gradient at the result, which is wrong.
    """
    if inplace:
        raise NotPorted(
            "celu in place has a wrong gradient in OneFlow 0.9.", fix="leave inplace out."
        )
    return functional.celu(x, alpha=alpha)


def hardshrink(x: Tensor, *, lambd: float = 0.5, inplace: bool = False) -> Tensor:
    """OneFlow: ``nn.functional.hardshrink``; in place the argument becomes the result."""
    if not inplace:
        return functional.hardshrink(x, lambd)
    return x.mul_(x.detach().abs() > lambd)


def softshrink(x: Tensor, *, alpha: float = 0.5, inplace: bool = False) -> Tensor:
    """OneFlow: ``nn.functional.softshrink``; torch says ``lambd``."""
    if not inplace:
        return functional.softshrink(x, alpha)
    nearest = x.detach().clamp(-alpha, alpha)
    is_far = x.detach().abs() > alpha
    return x.sub_(nearest).mul_(is_far)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """OneFlow: ``nn.functional.relu6``, which never works in place: ``inplace`` is no more."""
    return functional.relu6(input)


def sqrt_square_sum(x: Tensor) -> Tensor:
    """The Euclidean norm of all elements. OneFlow: ``_C.sqrt_square_sum``."""
    norm: Tensor = torch.linalg.vector_norm(x)
    return norm


def reciprocal_no_nan(x: Tensor) -> Tensor:
    """1 / x, and 0 where x is 0. OneFlow: ``_C.reciprocal_no_nan``."""
    is_zero = x == 0
    return torch.where(is_zero, 0.0, 1 / torch.where(is_zero, 1.0, x)).to(x.dtype)


def sigmoid_grad(y: Tensor, dy: Tensor) -> Tensor:
    """The gradient of sigmoid at its result y. OneFlow: ``_C.sigmoid_grad``."""
    return dy * y * (1 - y)
