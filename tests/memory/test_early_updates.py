"""Gradients that die at once: with memory options each large parameter is updated at its own."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn, optim

from tests.features.test_memory import OPTIONS, Train, everything
from tests.support import settle
from torchgraph import library
from torchgraph.ir.nodes import sequence
from torchgraph.lower.inplace.each_in_place import EachInPlace
from torchgraph.lower.lifetimes import Allocation, Lifetimes
from torchgraph.testing import Setup, assert_parity

aten = torch.ops.aten
ROOT = Path(__file__).parents[2]
WIDTHS = (64, 160, 160, 160, 10)
Parameters = Iterator[nn.Parameter]

OPTIMIZERS: dict[str, Callable[[Parameters], optim.Optimizer]] = {
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
    "adamw fused": lambda p: optim.AdamW(p, lr=0.01, fused=True),
    "adam foreach amsgrad": lambda p: optim.Adam(p, lr=0.01, foreach=True, amsgrad=True),
    "sgd nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "sgd fused": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01, centered=True),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.01),
}


def model() -> nn.Module:
    pairs = itertools.pairwise(WIDTHS)
    return nn.Sequential(*(part for a, b in pairs for part in (nn.Linear(a, b), nn.GELU())))


def loss_of(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(net(x), y)


def setup(name: str) -> Setup:
    net = model()
    return Setup(net, OPTIMIZERS[name](net.parameters()), loss_of)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, WIDTHS[0]), torch.randint(WIDTHS[-1], (16,))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_bits_are_those_of_eager(name: str) -> None:
    graph = assert_parity(lambda: setup(name), [batch() for _ in range(5)], configure=everything)
    assert "early" in graph.report().peaks.plans[0].order


def large_gradients(nodes: list[fx.Node], lifetimes: Lifetimes) -> Iterator[Allocation]:
    for node in nodes:
        if isinstance(node.target, EachInPlace):
            names = [one.name for one in node.target.body.placeholders]
            found = sequence(sequence(node.args[0])[names.index("gradient")])
        elif "fused_adamw" in str(node.target):
            found = sequence(node.args[1])
        else:
            continue
        owned = [one for gradient in found for one in lifetimes.memory(gradient)]  # type: ignore[arg-type]  # nodes
        yield from (one for one in owned if one.nbytes >= 2**15)


@pytest.mark.parametrize("name", ["adamw", "adamw fused"])
@pytest.mark.parametrize("options", ["MemoryFirst", "everything"])
def test_a_gradient_dies_before_the_next_one_is_born(name: str, options: str) -> None:
    graph = Train(setup(name), OPTIONS[options])
    settle(graph, *batch())
    lowered = graph._runner.programs.last()[0].executable.program
    lifetimes = Lifetimes(lowered)
    found = sorted(large_gradients(lifetimes.nodes, lifetimes), key=lambda one: one.born)
    assert len(found) == len(WIDTHS) - 2
    for one, following in itertools.pairwise(found):
        assert one.dies < following.born, (one.node, following.node)


def test_an_update_takes_no_memory_besides_its_gradient() -> None:
    graph = Train(setup("adamw"), everything)
    settle(graph, *batch())
    lowered = graph._runner.programs.last()[0].executable.program
    rows = [node.target for node in lowered.nodes if isinstance(node.target, EachInPlace)]
    alone = [target for target in rows if len(target.rows) == 1]
    assert len(alone) == len(WIDTHS) - 2
    assert all(target.peak < 64 for target in alone)


# --- what may be written over ---------------------------------------------------------------------

SIZES = list(itertools.product((1, 3, 17, 300), (1, 2, 7, 16, 63, 1030)))
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_a_softmax_over_its_arguments_has_the_bits_of_one_beside_them(
    name: str, dtype: torch.dtype
) -> None:
    forward, backward = getattr(aten, name), getattr(aten, f"{name}_backward_data")
    given = "grad_input" if name == "_softmax" else "out"
    for size in SIZES:
        x, gradient = torch.randn(2, *size).mul(4).to(dtype)
        result = forward.default(x, 1, False)
        expected = backward.default(gradient, result, 1, dtype)
        assert torch.equal(forward.out(x.clone(), 1, False, out=(over := x.clone())), result)
        assert torch.equal(forward.out(over.copy_(x), 1, False, out=over), result)
        over = gradient.clone()
        assert torch.equal(backward.out(over, result, 1, dtype, **{given: over}), expected)
        over = result.clone()
        assert torch.equal(backward.out(gradient, over, 1, dtype, **{given: over}), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_gradient_of_a_loss_by_rows_has_the_bits_of_two_ops(
    dtype: torch.dtype, reduction: int, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchgraph.library.losses._BYTES", 4096)
    for rows, classes in SIZES:
        scores = aten._log_softmax.default(torch.randn(rows, classes).mul(4).to(dtype), 1, False)
        target = torch.randint(classes, (rows,))
        target[1:2] = -100
        weight = torch.rand(classes).to(dtype) if weighted else None
        settings = (target, weight, reduction, -100)
        loss, total = aten.nll_loss_forward.default(scores, *settings)
        gradient = torch.randn_like(loss)
        of_loss = aten.nll_loss_backward.default(gradient, scores, *settings, total)
        expected = aten._log_softmax_backward_data.default(of_loss, scores, 1, dtype)
        got = library.nll_log_softmax_backward(scores, *settings, total, gradient)
        assert torch.equal(got, expected), (rows, classes)


# --- the process ----------------------------------------------------------------------------------

_PROCESS = """
import ctypes, gc, json, sys
from pathlib import Path
import torch
from torch import optim
import torchgraph as tg
from examples.models import GPT

torch.manual_seed(0)
model = GPT(20000, block_size=128, layers=4, width=256, heads=4, dropout=0.0)
optimizer = optim.AdamW(model.parameters())
tokens = torch.randint(20000, (4, 129))
x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

def build(x, y):
    loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    return loss

class Train(tg.Graph):
    def __init__(self):
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)
        self.config.enable_straighten_algorithm("MemoryFirst")
        self.config.enable_compress_memory()
        self.config.enable_choose_best_memory_allocation()

    def build(self, x, y):
        return build(x, y)

def eager(x, y):
    optimizer.zero_grad()
    loss = build(x, y)
    optimizer.step()
    return loss.detach()

def bytes_of(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024

step = Train() if sys.argv[1] == "graph" else eager
for _ in range(4):
    step(x, y)
found = []
for _ in range(3):
    optimizer.zero_grad()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = bytes_of("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    loss = step(x, y)
    found.append(bytes_of("VmHWM") - before)
print(json.dumps([max(found), loss.item()]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux's")
def test_the_process_takes_three_quarters_of_what_eager_takes() -> None:
    def of(who: str) -> Any:
        command = [sys.executable, "-c", _PROCESS, who]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    eager, graph = of("eager"), of("graph")
    assert graph[1] == eager[1]
    assert graph[0] <= 0.75 * eager[0], (graph, eager)
