"""Initial values that OneFlow draws from another distribution, or by other arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import init

from ..errors import NotPorted

FORMATS = {"channels_first": slice(2, None), "channels_last": slice(1, -1)}


def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> Tensor:
    """A normal distribution whose values beyond a and b become a and b; torch draws those anew.

    OneFlow: ``nn.init.trunc_normal_``.
    """
    with torch.no_grad():
        return tensor.normal_(mean, std).clamp_(a, b)


def get_data_format(data_format: str) -> str:
    """channels_first of "NC...", channels_last of "N...C". OneFlow: ``nn.init.get_data_format``."""
    if data_format.startswith("NC"):
        return "channels_first"
    if data_format.startswith("N") and data_format.endswith("C"):
        return "channels_last"
    if data_format:
        raise ValueError(f'data_format {data_format!r} is neither "N...C" nor "NC...".')
    return ""


def calc_fan(shape: Sequence[int], mode: str, data_format: str) -> float:
    """How many inputs, outputs or both a value of a weight has. OneFlow: ``nn.init.calc_fan``."""
    if len(shape) < 2:
        raise ValueError("a tensor of fewer than two dimensions has no fan in and fan out.")
    fan_in, fan_out = math.prod(shape[1:]), shape[0]
    if len(shape) > 2:
        if data_format not in FORMATS:
            raise ValueError(f"data_format {data_format!r} is not one of {', '.join(FORMATS)}.")
        fan_out *= math.prod(shape[FORMATS[data_format]])
    fans = {"fan_in": fan_in, "fan_out": fan_out, "fan_sum": fan_in + fan_out}
    if mode not in fans:
        raise ValueError(f"mode {mode!r} is not one of {', '.join(fans)}.")
    return float(fans[mode])


def _fan(tensor: Tensor, mode: str, data_format: str) -> float:
    return calc_fan(tensor.shape, mode, get_data_format(data_format))


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, *, data_format: str = "NCHW") -> Tensor:
    """OneFlow: ``nn.init.xavier_uniform_``, which takes a data_format."""
    bound = gain * math.sqrt(6.0 / _fan(tensor, "fan_sum", data_format))
    return init.uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, *, data_format: str = "NCHW") -> Tensor:
    """OneFlow: ``nn.init.xavier_normal_``, which takes a data_format."""
    return init.normal_(tensor, 0.0, gain * math.sqrt(2.0 / _fan(tensor, "fan_sum", data_format)))


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    *,
    data_format: str = "NCHW",
) -> Tensor:
    """OneFlow: ``nn.init.kaiming_uniform_``, which takes a data_format."""
    std = _gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode, data_format))
    return init.uniform_(tensor, -math.sqrt(3.0) * std, math.sqrt(3.0) * std)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    *,
    data_format: str = "NCHW",
) -> Tensor:
    """OneFlow: ``nn.init.kaiming_normal_``, which takes a data_format."""
    std = _gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode, data_format))
    return init.normal_(tensor, 0.0, std)


def _gain(nonlinearity: str, a: float) -> float:
    return init.calculate_gain(nonlinearity, a)  # type: ignore[arg-type]


def orthogonal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Refused: OneFlow 0.9's leaves the tensor as it was.

    Raises:
        NotPorted: always.
    """
    raise NotPorted(
        "OneFlow 0.9's nn.init.orthogonal_ leaves the tensor as it was.",
        fix="call torch.nn.init.orthogonal_ to have it filled, or leave the call out.",
    )
