"""Steps with quantiles are exported, and the forms of our ops compute what torch computes."""

from __future__ import annotations

import pytest
import torch

import torchgraph as tg
from tests.deploy.steps import loaded
from torchgraph.deploy import quantiles

ROWS = torch.tensor([[3.0, 1.0, 2.0, 5.0, 4.0], [0.0, torch.nan, 9.0, 8.0, 7.0]])
HOW = ["linear", "lower", "higher", "nearest", "midpoint"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("ignores", [False, True])
def test_the_form_is_a_quantile(how, ignores):
    compute = torch.nanquantile if ignores else torch.quantile
    for q in (torch.tensor(0.3), torch.tensor([0.0, 0.6, 1.0])):
        for dim in (None, 0, -1):
            for keepdim in (False, True):
                expected = compute(ROWS, q, dim, keepdim, interpolation=how)
                found = quantiles.quantile(ROWS, q, dim, keepdim, how, ignores)
                torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize(
    "limit",
    [
        lambda x: torch.where(x < torch.quantile(x.detach(), 0.8), x, 0.1 * x),
        lambda x: torch.quantile(x, torch.tensor([0.1, 0.5]), dim=1),
    ],
)
def test_a_step_with_a_quantile_is_exported(limit, tmp_path):
    torch.manual_seed(0)
    linear = torch.nn.Linear(8, 30)

    class Step(tg.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = linear
            self.add_optimizer(torch.optim.SGD(linear.parameters(), lr=0.01))

        def build(self, x) -> torch.Tensor:
            loss = limit(self.model(x)).sum()
            loss.backward()
            return loss

    step = Step()
    for _ in range(3):
        step(torch.randn(4, 8))
    tg.export(step, tmp_path / "step.pt2")
    module = loaded(tmp_path / "step.pt2")
    for _ in range(3):
        x = torch.randn(4, 8)
        torch.testing.assert_close(module(x), step(x))
