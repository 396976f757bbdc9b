"""``debug(1)``: each module's lines come when it is called and when it has run, as OneFlow's do."""

from __future__ import annotations

import re
import sys

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from torchgraph.nn.graph import GraphModule

pytestmark = [
    pytest.mark.usefixtures("without_looks"),
    pytest.mark.filterwarnings("ignore:Replays of the step do not repeat"),
]


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


class Net(nn.Module):
    """It prints between the calls of its parts."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.unused = nn.Linear(3, 3)

    def forward(self, x):
        say("net begins")
        hidden = self.first(x)
        say("between")
        hidden = self.norm(hidden)
        say("net ends")
        return hidden


class Step(tg.Graph):
    def __init__(self):
        super().__init__()
        self.net = Net()
        self.add_optimizer(optim.SGD(self.net.parameters(), lr=0.1))
        self.config.set_backend("aten")

    def build(self, x):
        say("build begins")
        loss = self.net(x).square().mean()
        loss.backward()
        say("build ends")
        return loss


def said(capsys) -> list[str]:
    """Lines of stdout; a torch of 2.13 names the bias of a norm."""
    lines = capsys.readouterr().out.splitlines()
    return [re.sub(r"tensor\(\.\.\., size=|bias=True, (?=track)", "", line) for line in lines]


BUILDING = """
(GRAPH:Step_N:Step) start building graph inputs.
(INPUT:_Step_N_input.0.0_2:(2, 3), dtype=torch.float32))
(GRAPH:Step_N:Step) end building graph inputs.
(GRAPH:Step_N:Step) start building graph modules.
build begins
(MODULE:net:Net())
(INPUT:_net_input.0.0_2:(2, 3), dtype=torch.float32))
net begins
(MODULE:net.first:Linear(in_features=3, out_features=4, bias=True))
(INPUT:_net.first_input.0.0_2:(2, 3), dtype=torch.float32))
(PARAMETER:net.first.weight:(4, 3), dtype=torch.float32, requires_grad=True))
(PARAMETER:net.first.bias:(4,), dtype=torch.float32, requires_grad=True))
(OUTPUT:_net.first_output.0.0_2:(2, 4), dtype=torch.float32, requires_grad=True))
between
(MODULE:net.norm:BatchNorm1d(4, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True))
(INPUT:_net.norm_input.0.0_2:(2, 4), dtype=torch.float32, requires_grad=True))
(PARAMETER:net.norm.weight:(4,), dtype=torch.float32, requires_grad=True))
(PARAMETER:net.norm.bias:(4,), dtype=torch.float32, requires_grad=True))
(BUFFER:net.norm.running_mean:(4,), dtype=torch.float32))
(BUFFER:net.norm.running_var:(4,), dtype=torch.float32))
(BUFFER:net.norm.num_batches_tracked:(), dtype=torch.int64))
(OUTPUT:_net.norm_output.0.0_2:(2, 4), dtype=torch.float32, requires_grad=True))
net ends
(OUTPUT:_net_output.0.0_2:(2, 4), dtype=torch.float32, requires_grad=True))
build ends
(GRAPH:Step_N:Step) end building graph modules.
(GRAPH:Step_N:Step) start building graph outputs.
(OUTPUT:_Step_N_output.0.0_2:(), dtype=torch.float32))
(GRAPH:Step_N:Step) end building graph outputs.
""".strip().splitlines()


def test_the_lines_come_while_the_modules_run(capsys):
    graph = Step()
    graph.debug(1)
    graph(torch.randn(2, 3))
    lines = [line.replace(graph.name, "Step_N") for line in said(capsys)]
    assert lines[: len(BUILDING)] == BUILDING


def test_they_come_once_for_a_signature(capsys):
    graph = Step()
    graph.debug(1)
    for rows in (2, 2, 2, 5, 5):
        graph(torch.randn(rows, 3))
    lines = said(capsys)
    starts = [line for line in lines if line.endswith("start building graph modules.")]
    assert len(starts) == 2
    inputs = [line for line in lines if line.startswith("(INPUT:_net_input")]
    assert len(inputs) == 2


@pytest.mark.parametrize("level", [-1, 0])
def test_below_level_1_no_module_is_told(capsys, level):
    graph = Step()
    graph.debug(level)
    graph(torch.randn(2, 3))
    assert not [line for line in said(capsys) if "(MODULE" in line]


def test_one_module_alone(capsys):
    graph = Step()
    graph.net.norm.to(GraphModule).debug(1)
    graph(torch.randn(2, 3))
    lines = said(capsys)
    modules = [line for line in lines if line.startswith("(MODULE")]
    assert modules == [line for line in BUILDING if line.startswith("(MODULE:net.norm")]
    assert lines.index("between") < lines.index(modules[0]) < lines.index("net ends")


def test_micro_batches_are_told_once(capsys):
    graph = Step()
    graph.config.set_gradient_accumulation_steps(2)
    graph.debug(1)
    graph(torch.randn(4, 3))
    lines = said(capsys)
    assert lines.count("(MODULE:net:Net())") == 1
    assert lines.count("build begins") == 2


def test_a_build_that_raises_ends_its_lines(capsys):
    graph = Step()
    graph.debug(1)
    with pytest.raises(RuntimeError):
        graph(torch.randn(2, 7))
    lines = said(capsys)
    assert "(MODULE:net.first:Linear(in_features=3, out_features=4, bias=True))" in lines
    with pytest.raises(RuntimeError):
        graph(torch.randn(2, 7))


def test_to_print_is_no_part_of_the_step(capsys):
    guards = []
    for level in (-1, 1):
        graph = Step()
        graph.debug(level)
        for _ in range(3):
            graph(torch.ones(2, 3))
        assert graph.report().calls.programs == 1
        guards.append(len(graph.report().guards))
    assert guards[0] == guards[1]


def test_a_call_after_a_check_prints_its_modules(capsys):
    """The steps of a check are taken back: the call is the first of its signature."""
    torch.manual_seed(0)
    graph = Step()
    graph.debug(1)
    graph.check(torch.randn(5, 3))
    capsys.readouterr()
    graph(torch.randn(5, 3))
    assert any("first" in line for line in said(capsys) if line.startswith("(MODULE:"))
