"""Functions that OneFlow has since 1.0."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from ....calls.live_step import building
from ....errors import InvalidOption
from ....library.order import depend as ordered
from .resizing import interpolate


def depend(input: Tensor, depend: Tensor | Sequence[Tensor]) -> Tensor:
    """``input``, whose readers run after what computes ``depend``, one tensor or a list.

    Outside of `build`, where all runs as it is written, it is ``input`` itself. OneFlow:
    ``nn.functional.depend``.

    Raises:
        InvalidOption: ``input`` would come after itself. In OneFlow it is a RuntimeError.
    """
    others = [depend] if isinstance(depend, Tensor) else list(depend)
    if not building():
        return input
    if any(one is input for one in others):
        raise InvalidOption("nn.functional.depend: a tensor cannot come after itself.")
    return ordered(input, *others)


def square_relu(x: Tensor) -> Tensor:
    """``relu(x)`` squared. OneFlow: ``nn.functional.square_relu``."""
    positive = functional.relu(x)
    return positive * positive


def interpolate_like(
    input: Tensor, like: Tensor, mode: str = "nearest", align_corners: bool | None = None
) -> Tensor:
    """``input`` in the size of ``like``. OneFlow: ``nn.functional.interpolate_like``."""
    size = tuple(like.shape[2:])
    return interpolate(input, size=size, mode=mode, align_corners=align_corners)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    num_channels: int | None = None,
) -> Tensor:
    """OneFlow: ``nn.functional.group_norm``.

    Raises:
        InvalidOption: ``num_channels`` is not the number of channels, or there is no dimension
            besides samples and channels.
    """
    if input.dim() < 3 or num_channels not in (None, input.shape[1]):
        raise InvalidOption(
            f"group_norm takes an input of shape (samples, channels, ...) with "
            f"{'' if num_channels is None else f'{num_channels} '}channels, not "
            f"{tuple(input.shape)}."
        )
    return functional.group_norm(input, num_groups, weight, bias, eps)
