"""What a step keeps for its backward part, beside what autograd saves in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F

import torchgraph as tg
from tests import support
from torchgraph.costs.activations import kept_by_node
from torchgraph.costs.by_module import kept_by_module, work_by_module
from torchgraph.costs.op_calls import Work, work_by_node
from torchgraph.ir.each import is_each
from torchgraph.ir.program import Phase, Program, provenance


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).view(2, 4, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


CASES: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "linear": lambda: (nn.Linear(4, 4), torch.randn(3, 4)),
    "mlp": lambda: (
        nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2)),
        torch.randn(3, 4),
    ),
    "views": lambda: (
        nn.Sequential(nn.Linear(4, 8), nn.Unflatten(1, (2, 4)), nn.ReLU(), nn.Flatten()),
        torch.randn(3, 4),
    ),
    "convolution": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        torch.randn(2, 3, 8, 8),
    ),
    "attention": lambda: (Attention(), torch.randn(2, 4, 8)),
    "shared": lambda: (
        nn.Sequential(layer := nn.Linear(4, 4), nn.Tanh(), layer),
        torch.randn(3, 4),
    ),
}


def saved_in_eager(model: nn.Module, x: torch.Tensor) -> int:
    """Bytes of the memory that autograd holds, without what is there anyway."""
    held: dict[int, int] = {}
    alive: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(x).square().sum()
    for tensor in (*model.parameters(), *model.buffers(), x):
        held.pop(tensor.untyped_storage().data_ptr(), None)
    loss.backward()
    model.zero_grad()
    return sum(held.values())


class Step(tg.Graph):
    def __init__(self, model: nn.Module, micro_batches: int = 1):
        super().__init__()
        self.model = model
        self.add_optimizer(optim.SGD(model.parameters(), lr=0.1))
        self.config.set_backend("aten")
        self.config.set_gradient_accumulation_steps(micro_batches)

    def build(self, x):
        loss = self.model(x).square().sum()
        loss.backward()
        return loss


def program_of(graph: tg.Graph, *args: torch.Tensor) -> Program:
    for _ in range(3):
        graph(*args)
    return graph.program


@pytest.mark.parametrize("case", CASES)
def test_it_is_what_autograd_saves(case):
    torch.manual_seed(0)
    model, x = CASES[case]()
    expected = saved_in_eager(model, x)
    assert expected > 0
    assert sum(kept_by_node(program_of(Step(model), x)).values()) == expected


def test_nothing_is_kept_without_a_backward():
    class Evaluate(tg.Graph):
        def __init__(self):
            super().__init__()
            self.model = nn.Sequential(nn.Linear(4, 4), nn.GELU())

        def build(self, x):
            return self.model(x)

    assert kept_by_node(program_of(Evaluate(), torch.randn(3, 4))) == {}


def test_it_is_the_modules_that_made_it():
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    kept = kept_by_module(program_of(Step(model), torch.randn(3, 4)))
    assert kept["model.0"] == 3 * 8 * 4  # what GELU is given
    assert kept["model.1"] == 3 * 8 * 4  # what the last layer is given
    assert kept["model.2"] == 3 * 2 * 4  # what is squared


def test_a_micro_batch_alone_is_counted():
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    kept = kept_by_module(program_of(Step(model, 2), torch.randn(6, 4)))
    assert kept["model.0"] == 3 * 8 * 4


@pytest.mark.parametrize("case", CASES)
def test_the_work_of_the_modules_is_that_of_the_program(case):
    model, x = CASES[case]()
    program = program_of(Step(model), x)
    whole = sum(work_by_node(program).values(), Work())
    parts = [work for phases in work_by_module(program).values() for work in phases.values()]
    assert sum(parts, Work()) == whole


def test_the_update_of_a_parameter_is_its_modules():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 100), nn.Linear(100, 2, bias=False))
    program = program_of(Step(model), torch.randn(3, 4))
    assert any(map(is_each, program.nodes))
    found = work_by_module(program)
    moved = {name: found[name][Phase.UPDATE].bytes for name in ("model.0", "model.1", "model.2")}
    sizes = {
        f"model.{i}": sum(p.numel() for p in layer.parameters()) for i, layer in enumerate(model)
    }
    for name, size in sizes.items():
        assert moved[name] == pytest.approx(moved["model.0"] * size / sizes["model.0"], rel=0.02)
    assert Phase.UPDATE not in found[""]


def test_views_of_one_value_count_once():
    def step(x):
        doubled = torch.ops.aten.mul.Tensor(x, 2.0)
        turned = torch.ops.aten.t.default(doubled)
        one = torch.ops.aten.add.Tensor(doubled, 1.0)
        return (torch.ops.aten.mm.default(one, turned),)

    program = support.build(step, torch.randn(3, 4))
    mm = support.find(program, torch.ops.aten.mm.default)
    for node in program.nodes:
        if node.op == "call_function":
            line = provenance(node)
            phase = Phase.BACKWARD if node is mm else Phase.FORWARD
            node.meta["provenance"] = type(line)(line.module, phase, line.frames)
    kept = {node.target: size for node, size in kept_by_node(program).items()}
    assert kept == {torch.ops.aten.mul.Tensor: 48, torch.ops.aten.add.Tensor: 48}
