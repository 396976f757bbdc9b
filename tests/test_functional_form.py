"""The short way to the functional program: what it must not trip over."""

import pytest
import torch
from torch import nn

import torchgraph as tg


class Forward(tg.Graph):
    """Calls one module, and adds what lies outside."""

    def __init__(self, model: nn.Module, outside: torch.Tensor | nn.Module) -> None:
        super().__init__()
        self.model = model
        self.outside = [outside]

    def build(self, x: torch.Tensor) -> torch.Tensor:
        y = self.model(x)
        (outside,) = self.outside
        return outside(y) if isinstance(outside, nn.Module) else y + outside


def test_dropout_with_the_probability_that_the_op_has_by_default():
    model, x = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5)), torch.randn(4, 3)
    graph = Forward(model, torch.zeros(8))

    torch.manual_seed(0)
    got = graph(x)

    torch.manual_seed(0)
    assert torch.equal(got, model(x))


def test_a_tensor_that_is_found_after_the_first_op():
    model, outside, x = nn.Linear(3, 2), torch.randn(2), torch.randn(4, 3)

    assert torch.equal(Forward(model, outside)(x), model(x) + outside)


def test_a_module_that_is_found_after_the_first_op():
    model, outside, x = nn.Linear(3, 2), nn.Linear(2, 2), torch.randn(4, 3)

    with pytest.warns(tg.errors.UnregisteredModuleWarning):
        got = Forward(model, outside)(x)

    assert torch.equal(got, outside(model(x)))
