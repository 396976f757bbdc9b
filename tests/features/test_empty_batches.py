"""Batches without rows: what eager gives, mostly nan, is what a program gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torchgraph import Graph

Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]

LOSSES: dict[str, tuple[Loss, dict[str, nn.Module]]] = {}


def loss(name: str, /, **modules: Callable[[], nn.Module]) -> Callable[[Loss], None]:
    def keep(function: Loss) -> None:
        LOSSES[name] = (function, modules)  # type: ignore[assignment]  # made anew for each run

    return keep


def linear() -> nn.Module:
    return nn.Linear(3, 8)


loss("mean", a=linear)(lambda m, x, y: m.a(x).square().mean())
loss("sum", a=linear)(lambda m, x, y: m.a(x).sum())
loss("by length", a=linear)(lambda m, x, y: m.a(x).sum() / max(len(x), 1))
loss("cross entropy", a=linear)(lambda m, x, y: F.cross_entropy(m.a(x), y))
loss("smoothed", a=linear)(lambda m, x, y: F.cross_entropy(m.a(x), y, label_smoothing=0.1))
loss("bce", a=linear)(lambda m, x, y: F.binary_cross_entropy_with_logits(m.a(x)[:, 0], y / 8))
loss("norms", a=linear, b=lambda: nn.LayerNorm(8), c=lambda: nn.RMSNorm(8))(
    lambda m, x, y: m.c(m.b(m.a(x))).mean()
)
loss("batch norm", a=linear, b=lambda: nn.BatchNorm1d(8))(lambda m, x, y: m.b(m.a(x)).mean())
loss("embedding", a=lambda: nn.Embedding(8, 4))(lambda m, x, y: m.a(y).mean())
loss("attention", a=linear, b=lambda: nn.MultiheadAttention(8, 2, batch_first=True))(
    lambda m, x, y: m.b(*[m.a(x)[:, None].expand(-1, 4, -1)] * 3)[0].mean()
)
loss("convolution", a=lambda: nn.Conv1d(1, 2, 2))(lambda m, x, y: m.a(x[:, None]).mean())
loss("lstm", a=lambda: nn.LSTM(3, 4, batch_first=True))(lambda m, x, y: m.a(x[:, None])[0].mean())
loss("largest", a=linear)(lambda m, x, y: m.a(x).max())
loss("length", a=linear)(lambda m, x, y: m.a(x).norm())
loss("dropout", a=linear)(lambda m, x, y: F.dropout(m.a(x), 0.5).mean())
loss("selected", a=linear)(lambda m, x, y: m.a(x)[y > 3].mean())

SIZES = (4, 4, 4, 0, 0, 0, 0, 4)


def trained(name: str, *, graph: bool, set_up: Callable[[Any], None] = lambda config: None) -> Any:
    """What each call gives, or raises, and the parameters after all of them."""
    torch.manual_seed(0)
    function, modules = LOSSES[name]
    model = nn.ModuleDict({key: make() for key, make in modules.items()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found = function(model, x, y)
        found.backward()
        return found

    class Training(Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)
            self.config.set_backend("aten")
            set_up(self.config)

        def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return step(x, y)

    run: Any = Training() if graph else step
    found: list[Any] = []
    for rows in SIZES:
        x, y = torch.randn(rows, 3), torch.randint(0, 8, (rows,))
        optimizer.zero_grad()
        try:
            found.append(run(x, y).detach())
            if not graph:
                optimizer.step()
        except (RuntimeError, ValueError, IndexError) as error:
            found.append(type(error))
    if graph:
        assert str(run.report()), repr(run)
        assert run.report().calls.programs >= 2
    return found, [parameter.detach() for parameter in model.parameters()]


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, type) or isinstance(other, type):
        return isinstance(one, type) and isinstance(other, type) and issubclass(one, other)
    alike = torch.equal(one.isnan(), other.isnan())
    return alike and torch.equal(one.nan_to_num(), other.nan_to_num())


@pytest.mark.parametrize("name", LOSSES)
def test_a_batch_without_rows_gives_what_eager_gives(name):
    found, parameters = trained(name, graph=True)
    wanted, theirs = trained(name, graph=False)
    assert list(map(equal, found, wanted)) == [True] * len(SIZES)
    assert all(map(equal, parameters, theirs))


def test_micro_batches_without_rows():
    found, _ = trained("mean", graph=True, set_up=lambda c: c.set_gradient_accumulation_steps(2))
    assert [one.isnan().tolist() for one in found] == [[rows == 0] * 2 for rows in SIZES]


@pytest.mark.slow  # compiles for half a minute
@pytest.mark.parametrize("name", ["mean", "cross entropy", "norms", "embedding"])
def test_compiled_code_of_a_batch_without_rows(name):
    found, _ = trained(name, graph=True, set_up=lambda config: config.set_backend("inductor"))
    assert [bool(one.isnan()) for one in found] == [rows == 0 for rows in SIZES]
