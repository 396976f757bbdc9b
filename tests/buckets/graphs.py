"""Graphs with buckets, and comparison with the batch as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

import torchgraph as tg


class Padded(tg.Graph):
    """A function over modules, with buckets."""

    def __init__(
        self,
        function: Callable[..., Any],
        *modules: nn.Module,
        dim: int = 0,
        sizes: Sequence[int] = (8,),
        **options: Any,
    ) -> None:
        super().__init__()
        self.modules_ = nn.ModuleList(modules)
        self.function = function
        self.config.set_shape_buckets(dim, sizes, **options)

    def build(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*self.modules_, *args, **kwargs)


def close(got: Any, expected: Any) -> None:
    """The same structure and strides; numbers within the rounding of a matrix product."""
    torch.testing.assert_close(got, expected, rtol=2e-6, atol=2e-6, equal_nan=True)
    leaves = [got] if isinstance(got, torch.Tensor) else list(got)
    others = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    for one, other in zip(leaves, others, strict=True):
        assert one.stride() == other.stride()
