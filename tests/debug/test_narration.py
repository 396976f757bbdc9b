"""``debug(1)``: the lines of modules come while they run, in OneFlow's order and format."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from torchgraph import Graph
from torchgraph.nn.graph import GraphModule

STAGE = re.compile(r"\(GRAPH:\w+:Training\) (.*?)( Done! Cost time: [\d.]+s)?\.$")
LEAF = re.compile(r"\((\w+):([\w.]+):")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("forward begins")  # noqa: T201  # what the user sees, between our lines
        x = self.fc(x)
        print("between")  # noqa: T201  # what the user sees, between our lines
        x = self.norm(x)
        print("forward ends")  # noqa: T201  # what the user sees, between our lines
        return x


class Training(Graph):
    def __init__(self, momentum: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = Net()
        parameters = self.model.parameters()
        self.add_optimizer(torch.optim.SGD(parameters, lr=0.1, momentum=momentum))

    def build(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


@pytest.fixture
def heard(capsys):
    """Gives a function that runs a Graph and gives the lines of one call, in short."""

    def heard(graph, rows=4):
        capsys.readouterr()
        graph(torch.ones(rows, 3))
        lines = capsys.readouterr().out.splitlines()
        if any("with operators:" in line for line in lines):
            lines = lines[: next(i for i, one in enumerate(lines) if "with operators:" in one)]
        return list(map(short, lines))

    return heard


def short(line: str) -> str:
    if found := STAGE.match(line):
        return found[1] + (" done" if found[2] else "")
    found = LEAF.match(line)
    return f"{found[1]} {found[2]}" if found else line


FC = ["MODULE model.fc", "INPUT _model.fc_input.0.0_2"]
FC += ["PARAMETER model.fc.weight", "PARAMETER model.fc.bias", "OUTPUT _model.fc_output.0.0_2"]
NORM = ["MODULE model.norm", "INPUT _model.norm_input.0.0_2"]
NORM += ["PARAMETER model.norm.weight", "PARAMETER model.norm.bias"]
NORM += ["BUFFER model.norm.running_mean", "BUFFER model.norm.running_var"]
NORM += ["BUFFER model.norm.num_batches_tracked", "OUTPUT _model.norm_output.0.0_2"]
BUILT = ["building graph done", "start building plan", "building plan done"]
PASSES = ["start building graph with compile passes", "end building graph with compile passes"]


def told(number: int) -> list[str]:
    return [
        "start building graph",
        "start building graph inputs",
        f"INPUT _Training_{number}_input.0.0_2",
        "end building graph inputs",
        "start building graph modules",
        "MODULE model",
        "INPUT _model_input.0.0_2",
        "forward begins",
        *FC,
        "between",
        *NORM,
        "forward ends",
        "OUTPUT _model_output.0.0_2",
        "end building graph modules",
        "start building graph outputs",
        f"OUTPUT _Training_{number}_output.0.0_2",
        "end building graph outputs",
    ]


FORWARD = ["forward begins", "between", "forward ends"]


def number_of(graph: Graph) -> int:
    return int(graph.name.rpartition("_")[2])


def test_each_line_comes_before_the_next_module_runs(heard):
    graph = Training()
    graph.debug(1)
    assert heard(graph) == [*told(number_of(graph)), *PASSES, *BUILT]
    assert heard(graph) == FORWARD  # it is recorded again; they are told of once
    assert heard(graph) == []


def test_a_program_of_the_second_call_is_told_of_as_one(heard):
    graph = Training(momentum=0.9)
    graph.debug(1)
    assert heard(graph) == told(number_of(graph))
    assert heard(graph) == [*FORWARD, *PASSES, *BUILT]


def test_other_arguments_are_told_of_as_well(heard):
    graph = Training()
    graph.debug(1)
    first = heard(graph)
    assert heard(graph, rows=5) == first


def test_one_module_alone(heard):
    graph = Training()
    graph.model.fc.to(GraphModule).debug(1)
    assert heard(graph) == ["forward begins", *FC, "between", "forward ends"]


def test_level_0_and_below_tell_of_no_module(heard):
    graph = Training()
    graph.debug(0)
    assert heard(graph) == [*FORWARD, "start building graph", *BUILT]
    assert heard(Training()) == FORWARD


def test_once_for_all_micro_batches(heard):
    graph = Training()
    graph.config.set_gradient_accumulation_steps(2)
    graph.debug(1)
    assert heard(graph).count("MODULE model.fc") == 1


def test_to_print_is_no_part_of_the_step(heard):
    losses = []
    for level in (-1, 1):
        graph = Training()
        graph.debug(level)
        losses.append([graph(torch.ones(4, 3)).item() for _ in range(5)])
        calls = graph.report().calls
        assert (calls.programs, calls.recorded) == (3, 2)
        assert not any("rich" in guard.name for guard in graph.report().guards)
    assert losses[0] == losses[1]


def test_a_build_that_raises_is_told_of_as_far_as_it_came(heard, capsys):
    class Raises(Training):
        def build(self, x: torch.Tensor) -> torch.Tensor:
            self.model.fc(x)
            raise ValueError("bad")

    graph = Raises()
    graph.debug(1)
    with pytest.raises(ValueError, match="bad"):
        graph(torch.ones(4, 3))
    shown = capsys.readouterr().out
    assert "(OUTPUT:_model.fc_output" in shown
    assert "end building graph modules" not in shown
