"""Half precision: an op and its in-place form round numbers at different points; eager's is run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests import support
from torchgraph.testing import Setup, assert_parity


class Mixed(nn.Module):
    """Numbers in both forms, on memory that is free and memory that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.last = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.gelu(self.first(x)) * 0.3
        kept = hidden * 1.7
        hidden = hidden.clone().mul_(0.7).add_(kept, alpha=0.1)
        return self.last(hidden / 1.1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "name",
    support.thinned(
        ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adamax"], keep=["AdamW", "RMSprop"]
    ),
)
def test_five_steps_are_bitwise_eager(name: str, dtype: torch.dtype) -> None:
    def make() -> Setup:
        model = Mixed().to(dtype)
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, weight_decay=0.1)
        loss = nn.CrossEntropyLoss(label_smoothing=0.1)
        return Setup(model, optimizer, lambda m, x, y: loss(m(x), y))

    batches = [(torch.randn(6, 4).to(dtype), torch.randint(0, 5, (6,))) for _ in range(5)]
    assert_parity(make, batches)


class Twice(tg.Graph):
    """One layer called twice under the user's own autocast."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def build(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.layer(self.layer(x))


def test_a_weight_is_cast_once_in_each_call_and_never_kept() -> None:
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    graph = Twice(layer)
    with torch.no_grad():
        for _ in range(5):
            with torch.autocast("cpu", torch.bfloat16):
                expected = layer(layer(x))
            assert torch.equal(graph(x), expected)
            layer.weight.data.copy_(torch.randn(4, 4))  # moves neither version nor pointer
    casts = support.targets(graph._runner.programs.compiler.shown[0].program).count("_to_copy")
    assert casts == 3  # x, weight, bias
