"""Small functions of OneFlow's package that are no operations."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import checkpoint as checkpoints

from ....distributed.words import env
from ..errors import NotPorted

T = TypeVar("T")
VERSION = "0.9.0"
"""OneFlow's release whose names and numbers are here. OneFlow: ``__version__``."""


def balanced_part_nums(total: int, part_size: int) -> list[int]:
    """A number in parts that differ by one at most, the larger first.

    OneFlow: ``framework.balanced_splitter.BalancedPartNums``.
    """
    base, rest = divmod(total, part_size)
    return [base + (k < rest) for k in range(part_size)]


def balanced_ranges(total: int, part_size: int) -> list[tuple[int, int]]:
    """Where these parts begin and end. OneFlow: ``framework.balanced_splitter.BalancedRanges``."""
    ends = [0]
    for part in balanced_part_nums(total, part_size):
        ends.append(ends[-1] + part)
    return list(pairwise(ends))


def broadcast_object(obj: T, src: int = 0) -> T:
    """The object itself, in one process.

    OneFlow: ``framework.check_point_v2._broadcast_py_object``.

    Raises:
        NotPorted: there are several processes.
    """
    if env.get_world_size() > 1:
        raise NotPorted(
            "_broadcast_py_object of several processes is not here.",
            fix="use torch.distributed.broadcast_object_list.",
        )
    return obj


def from_torch(torch_tensor: Tensor) -> Tensor:
    """The same memory, without a gradient. OneFlow: ``utils.tensor.from_torch``."""
    return torch_tensor.detach()


def to_torch(flow_tensor: Tensor) -> Tensor:
    """The same memory, without a gradient. OneFlow: ``utils.tensor.to_torch``."""
    return flow_tensor.detach()


def checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    """A call whose intermediate values are computed anew for its gradient.

    OneFlow: ``utils.checkpoint.checkpoint``.
    """
    return checkpoints.checkpoint(function, *args, use_reentrant=False)


def script(obj: T, *args: Any, **kwargs: Any) -> T:
    """The object itself. OneFlow: ``jit.script``, which does nothing either, and warns of it."""
    return obj


def ignore(drop: bool = False, **kwargs: Any) -> Callable[[T], T]:
    """A decorator without effect. OneFlow: ``jit.ignore``, which has none either."""
    return lambda function: function


def script_if_tracing(function: T) -> T:
    """A decorator without effect. OneFlow after 0.9: ``jit._script_if_tracing``."""
    return function


def with_cuda() -> bool:
    """Whether torch was built with CUDA. OneFlow: ``sysconfig.with_cuda``."""
    return torch.version.cuda is not None


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Nothing, as in OneFlow after 0.9, which warns of it; torch's own is in torch."""
