"""The names in a written function: values of the program and what the function calls."""

from __future__ import annotations

import torch

import torchgraph as tg


class Constants(tg.Graph):
    """Constants that fold to `_expand`, `_expand_1` and so on; `expand` is the third op called."""

    def build(self, x: torch.Tensor) -> torch.Tensor:
        x = x.sin().cos()
        for number in range(6):
            x = x + torch.full((1,), float(number)).expand(3)
        return x.expand(2, 3) + 1


def test_a_constant_hides_no_function():
    x = torch.randn(3)
    assert torch.equal(Constants()(x), Constants().build(x))
