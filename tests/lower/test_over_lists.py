"""Rows of small tensors run op by op over all of them: eager's bits, fewer calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchgraph as tg
from tests import support
from torchgraph.lower.write import foreach
from torchgraph.lower.write.foreach import over_lists
from torchgraph.testing import Setup, assert_parity

aten = torch.ops.aten
SIZES = (3, 200, 5, 7, 400, 2)
"""Layers of these widths: weights above and below the size up to which rows run together."""


class Stack(nn.Module):
    def __init__(self, sizes: tuple[int, ...] = SIZES) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        self.wide = nn.Parameter(torch.randn(120, 120))  # 57.6 kB in float32

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x + self.wide.mean()


def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).float().square().sum()


def setup(make: Callable[..., torch.optim.Optimizer], dtype: torch.dtype) -> Callable[[], Setup]:
    def fresh() -> Setup:
        torch.manual_seed(0)
        model = Stack().to(dtype)
        return Setup(model, make(model.parameters()), loss)

    return fresh


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "AdamW, amsgrad": lambda p: torch.optim.AdamW(p, 0.01, amsgrad=True, maximize=True),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.01, weight_decay=0.1, decoupled_weight_decay=True),
    "RAdam": lambda p: torch.optim.RAdam(p, 0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.9, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.01, lr_decay=0.1),
    "Rprop": lambda p: torch.optim.Rprop(p, 0.01),
    "LAMB": lambda p: tg.optim.LAMB(p, 0.01),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    support.thinned_rows(
        itertools.product(OPTIMIZERS, [torch.float32, torch.bfloat16]),
        lambda name, dtype: dtype is torch.float32 or name == next(iter(OPTIMIZERS)),
    ),
)
def test_bitwise_eager(name, dtype):
    torch.manual_seed(1)
    batches = [(torch.randn(4, SIZES[0], dtype=dtype),) for _ in range(6)]
    assert_parity(setup(OPTIMIZERS[name], dtype), batches)


def source_of(sizes: tuple[int, ...]) -> str:
    model = Stack(sizes)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)

    @tg.step
    def train(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        value = model(x).square().sum()
        value.backward()
        optimizer.step()
        return value.detach()

    for _ in range(3):
        train(torch.randn(4, sizes[0]))
    return str(support.replay_of(train).executable.source)


def test_small_ones_run_together_and_the_others_alone():
    source = source_of(SIZES)
    together = source[source.index("def adamw_0_together") :].splitlines()
    assert sum("_foreach_" in line for line in together) >= 8
    assert "for _local_scalar_dense_default in" in "".join(together)  # a number for each row
    assert "def adamw_0(" in source


def test_large_ones_run_row_by_row():
    source = source_of((2, 20_000))
    assert "_foreach_" not in source
    assert "def adamw_0(" in source


def call(step: Callable[..., Any], *examples: Any) -> Any:
    """The first call of a program, with the columns of its rows: all of its inputs."""
    program = support.build(step, *examples)
    node = next(node for node in program.nodes if node.op == "call_function")
    return over_lists(node, set(program.placeholders))


def _times(number: float) -> Callable[[torch.Tensor], list[torch.Tensor]]:
    return lambda x: [aten.mul.Tensor(x, number)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_numbers_in_half_precision_are_not_taken(dtype):
    """``mul`` by a number rounds it over lists, and not alone; by some numbers that is the same."""
    x = torch.arange(1, 400, dtype=dtype)
    by = [0.37, 0.937, 0.9767, 0.99, 257]

    def listed(one: float) -> torch.Tensor:
        (found,) = held = [x.clone()]
        torch._foreach_mul_(held, one)
        return found

    assert any(not torch.equal(x.clone().mul_(one), listed(one)) for one in by)
    assert all(call(_times(one), x) is None for one in by)
    assert call(lambda x: [aten.mul.Tensor(x, x)], x) is not None
    assert call(lambda x: [aten.mul.Tensor(x, 0.37)], x.float()) is not None


@pytest.mark.parametrize("name", ["SGD", "RMSprop", "Adadelta"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_numbers_of_half_precision_as_parameters(name, dtype):
    """Gates, temperatures: a row holds one element, in which few numbers show how they round."""

    class Gates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            values = (nn.Parameter(torch.tensor(1.0 + i, dtype=dtype)) for i in range(8))
            self.gates = nn.ParameterList(values)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return sum(gate.float() * x[i] for i, gate in enumerate(self.gates)).sin()

    make = {**OPTIMIZERS, "Adadelta": torch.optim.Adadelta}[name]

    def fresh() -> Setup:
        model = Gates()
        return Setup(model, make(model.parameters()), lambda model, x: model(x))

    torch.manual_seed(0)
    assert_parity(fresh, [(torch.randn(8),) for _ in range(20)])


def test_it_is_tried_out_and_not_believed(monkeypatch):
    x = torch.randn(9)
    assert call(lambda x: [aten.sqrt.default(x)], x) is not None
    monkeypatch.setattr(foreach, "foreach", lambda name: torch._foreach_exp)
    assert call(lambda x: [aten.sqrt.default(x)], x) is None


@pytest.mark.parametrize(
    "step",
    [
        lambda x, y: [aten.div.Tensor_mode(x, y, rounding_mode="floor")],
        lambda x, y: [aten.maximum.default(x, y)],
        lambda x, y: [aten.sum.default(x)],
        lambda x, y: [aten.threshold.default(x, 0, 0)],
    ],
)
def test_others_are_called_for_each_row(step):
    x, y = torch.randn(9), torch.rand(9)
    assert call(step, x, y) is None


def test_what_rows_return_keeps_its_order():
    """The norm of each parameter's update is read after the step, in the order of parameters."""

    class Watched(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {})

        @torch.no_grad()
        def step(self, closure: Any = None) -> list[torch.Tensor]:
            norms = []
            for group in self.param_groups:
                for p in group["params"]:
                    p.mul_(0.9).add_(p.grad, alpha=-0.1)
                    norms.append(p.square().sum())
            return norms

    def train(compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Stack()
        optimizer = Watched(model.parameters())

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            F.mse_loss(model(x), torch.zeros(4, SIZES[-1])).backward()
            return torch.stack(optimizer.step())

        run = tg.step(step) if compiled else step
        torch.manual_seed(1)
        found = [run(torch.randn(4, SIZES[0])) for _ in range(5)]
        if compiled:
            assert run.report().calls.programs == 3
            assert "together" in support.replay_of(run).executable.source
        return found

    for expected, found in zip(train(False), train(True), strict=True):
        assert support.same_bits(found, expected)
