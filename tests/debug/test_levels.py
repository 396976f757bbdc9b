"""What each level of ``debug`` prints, and that it is printed when it happens."""

from __future__ import annotations

import gc
import inspect
import re
import sys
import warnings
import weakref
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from torchgraph.errors import DataDependent, EagerWarning
from torchgraph.ir.program import Program
from torchgraph.ir.rewriter import Rewriter
from torchgraph.nn.graph import GraphModule
from torchgraph.passes import Pass

pytestmark = [
    pytest.mark.usefixtures("without_looks"),
    pytest.mark.filterwarnings("ignore:Replays of the step do not repeat"),
]


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


class Scale(nn.Module):
    """It prints between its ops."""

    def forward(self, x):
        x = x * 2
        say("between")
        return x + 1


class Step(tg.Graph):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.scale = Scale()
        self.add_optimizer(optim.SGD(self.linear.parameters(), lr=0.1))
        self.config.set_backend("aten")

    def build(self, x):
        loss = self.scale(self.linear(x)).square().mean()
        say("forward ends")
        loss.backward()
        say("build ends")
        return loss


def lines_of(
    capsys: Any, level: int, *arguments: Any, graph: Any = None, calls: int = 1, **options: Any
) -> list[str]:
    graph = graph or Step()
    graph.debug(level, *arguments, **options)
    capsys.readouterr()
    for _ in range(calls):
        graph(torch.ones(2, 3))
    return capsys.readouterr().out.splitlines()


def added(lines: list[str]) -> list[str]:
    """The ops that were told, by name: ``linear-addmm-1``."""
    found = (re.match(r".* add op: \(OPERATOR: ([^(]+)\(", line) for line in lines)
    return [match[1] for match in found if match]


@dataclass(frozen=True)
class Talks(Pass):
    """A pass that prints when it runs."""

    name: ClassVar[str] = "talks"

    def exact(self, program: Program) -> bool:
        return True

    def apply(self, program: Program, edit: Rewriter) -> None:
        say("the pass runs")


# --- 0 --------------------------------------------------------------------------------------------


def test_the_steps_of_a_compilation_are_counted_as_they_begin(capsys):
    graph = Step()
    graph.config.passes.insert(Talks(), after="cse")
    lines = lines_of(capsys, 0, graph=graph)
    steps = [
        (int(found[1]), int(found[2]), found[3])
        for line in lines
        if (found := re.fullmatch(rf"\[(\d+)/(\d+)\]\[GraphCompile\]{graph.name} (\w+)", line))
    ]
    names = [name for *_, name in steps]
    assert names[0] == "capture"
    assert names[-3:] == ["lower", "bind", "done"]
    assert [record.name for record in graph.program.history] == names[1:-3]
    assert [number for number, *_ in steps] == list(range(1, len(steps) + 1))
    assert {count for _, count, _ in steps} == {len(steps)}
    place = lines.index("the pass runs")
    assert lines[place - 1].endswith(" talks")  # the line comes first, and that of the next after
    following = names[names.index("talks") + 1]
    assert lines[place + 1].endswith(f" {following}")
    start, done = (
        lines.index(f"(GRAPH:{graph.name}:Step) start building {what}.")
        for what in ("graph", "plan")
    )
    assert start < place < done < next(i for i, line in enumerate(lines) if " lower" in line)


class Odd(tg.Graph):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.config.set_fallback("eager")

    def build(self, x):
        with torch.no_grad():
            return self.linear(x).numpy().sum()


@pytest.mark.parametrize("level", [-1, 0])
def test_warnings_are_told_from_level_0_on(capsys, level):
    graph = Odd()
    with pytest.warns(EagerWarning) as warned:
        lines = lines_of(capsys, level, graph=graph, calls=2)
    told = [line for line in lines if line.startswith("[WARNING]")]
    assert len(told) == (level == 0)
    if told:
        head = str(warned[0].message).splitlines()[0]
        assert told[0] == f"[WARNING](GRAPH:{graph.name}:Odd) {head}"


def test_warnings_of_others_are_not_told(capsys):
    loud, silent = Odd(), Odd()
    loud.debug(0)
    with pytest.warns(EagerWarning):
        silent(torch.ones(2, 3))
    assert "[WARNING]" not in capsys.readouterr().out


# --- 2 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_ops_are_told_from_level_2_on(capsys, level):
    assert bool(added(lines_of(capsys, level))) == (level >= 2)


def test_an_op_is_told_when_it_runs(capsys):
    lines = lines_of(capsys, 2)
    ops: dict[str, int] = {}
    for i, line in enumerate(lines):
        for name in added([line]):
            ops.setdefault(name.rpartition("-")[0], i)
    between, forward, end = map(lines.index, ("between", "forward ends", "build ends"))
    module = next(i for i, line in enumerate(lines) if line.startswith("(MODULE:linear:"))
    output = next(i for i, line in enumerate(lines) if line.startswith("(OUTPUT:_linear_output"))
    assert module < ops["linear-addmm"] < output < ops["scale-mul"] < between < ops["scale-add"]
    assert ops["scale-add"] < ops["mean"] < forward < ops["linear-mm"] < end < ops["add_"]
    modules_end = f"(GRAPH:Step_{lines[0].partition('Step_')[2].partition(':')[0]}:Step) end"
    assert ops["add_"] < lines.index(f"{modules_end} building graph modules.")


def test_an_op_has_inputs_outputs_device_and_layout(capsys):
    lines = lines_of(capsys, 2)
    (line,) = [line for line in lines if " add op: (OPERATOR: linear-addmm-" in line]
    f32 = "dtype=torch.float32, device='cpu'"
    bias = f"linear.bias/out:(size=(4,), {f32}, layout=contiguous)"
    weight = f"linear-t-0/out_0:(size=(3, 4), {f32}, layout=strides(1, 3))"
    result = f"linear-addmm-1/out_0:(size=(2, 4), {f32}, layout=contiguous)"
    given = re.search(r"(_Step_\d+_input\.0\.0_2)/out:", line)[1]
    x = f"{given}/out:(size=(2, 3), {f32}, layout=contiguous)"
    assert line.endswith(
        f" add op: (OPERATOR: linear-addmm-1({bias}, {x}, {weight}) -> ({result}))"
    )


def test_a_memory_format_is_named(capsys):
    class Conv(tg.Graph):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)

        def build(self, x):
            return self.conv(x)

    graph = Conv()
    graph.debug(2)
    with torch.no_grad():
        graph(torch.ones(2, 3, 8, 8).to(memory_format=torch.channels_last))
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if " add op: (OPERATOR: conv-convolution-" in line]
    assert line.count("layout=channels_last") == 3


def test_the_ops_of_one_module_alone(capsys):
    graph = Step()
    graph.scale.to(GraphModule).debug(2)
    capsys.readouterr()
    graph(torch.ones(2, 3))
    ops = added(capsys.readouterr().out.splitlines())
    assert {name.rpartition("-")[0] for name in ops} == {"scale-mul", "scale-add"}


def test_a_module_may_say_less_than_the_graph(capsys):
    graph = Step()
    graph.debug(2)
    graph.scale.to(GraphModule).debug(-1)
    capsys.readouterr()
    graph(torch.ones(2, 3))
    ops = added(capsys.readouterr().out.splitlines())
    assert ops
    assert not [name for name in ops if name.startswith("scale-")]


def test_all_values_have_names(capsys):
    free = torch.ones(4)

    class Uses(Step):
        def build(self, x, by=2):
            x = self.linear(x) * free + torch.tensor([1.0, 2.0, 3.0, 4.0])
            loss = (x * by).square().mean()
            loss.backward()
            return loss

    ops = [line for line in lines_of(capsys, 2, graph=Uses()) if " add op: " in line]
    assert [line for line in ops if "(free.0/out:(size=(4,)" in line or " free.0/out:" in line]
    assert [line for line in ops if "lift_fresh" in line and "(constant " in line]
    assert not [line for line in ops if re.search(r"[( ]value \d+:", line)]


def test_ops_are_told_once_for_a_signature(capsys):
    graph = Step()
    first = added(lines_of(capsys, 2, graph=graph))
    assert first
    for rows in (2, 2, 5):
        graph(torch.ones(rows, 3))
        ops = added(capsys.readouterr().out.splitlines())
        assert bool(ops) == (rows == 5)


def test_to_be_told_changes_no_result():
    found, guards = [], []
    for level in (-1, 3):
        torch.manual_seed(0)
        graph = Step()
        graph.debug(level)
        found.append([graph(torch.ones(2, 3)) for _ in range(4)])
        guards.append((graph.report().calls.programs, len(graph.report().guards)))
    assert guards[0] == guards[1]
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_the_recorded_step_is_let_go(capsys):
    graph = Step()
    graph.debug(2)
    x = torch.ones(2, 3)
    graph(x)
    told, gone = weakref.ref(graph), weakref.ref(x)
    del x
    assert gone() is None
    del graph
    gc.collect()
    assert told() is None


def test_an_op_that_raises_ends_its_lines(capsys):
    graph = Step()
    graph.debug(2)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            graph(torch.ones(2, 7))
    assert added(capsys.readouterr().out.splitlines())
    graph(torch.ones(2, 3))


# --- 3 --------------------------------------------------------------------------------------------


def details(lines: list[str], op: str) -> list[str]:
    start = next(i for i, line in enumerate(lines) if f"(OPERATOR: {op}-" in line and "add" in line)
    rest = lines[start + 1 :]
    return rest[: next(i for i, line in enumerate(rest) if not line.startswith("  "))]


def test_details_have_all_arguments_and_the_line(capsys):
    found = details(lines_of(capsys, 3), "scale-add")
    assert found[0].startswith("  schema: aten::add.Tensor(Tensor self, Tensor other, *, ")
    assert found[1].startswith("  self: scale-mul-2/out_0:(size=(2, 4), ")
    assert found[2:5] == ["  other: 1", "  alpha (default): 1", "  phase: forward"]
    assert found[5] == "  called by: scale #2"
    line = inspect.getsourcelines(Scale.forward)[1] + 3
    assert found[6].endswith(f"Python Stack[-1]: 'forward' at '{__file__}': line {line}; )")


@pytest.mark.parametrize("level", [0, 1, 2])
def test_there_are_none_below_level_3(capsys, level):
    assert not [line for line in lines_of(capsys, level) if line.startswith("  schema: ")]


def frames(lines: list[str], op: str) -> int:
    return sum(line.count("Python Stack[") for line in details(lines, op))


@pytest.mark.parametrize(("depth", "shown"), [(0, 0), (1, 1), (2, 2), (9, 2)])
def test_so_many_lines_of_the_stack(capsys, depth, shown):
    graph = Step()
    lines = lines_of(capsys, 3, None, depth, op_repr_with_py_stack=True, graph=graph)
    assert frames(lines, "scale-add") == shown  # in forward, in build
    operators = [line for line in str(graph).splitlines() if "(OPERATOR: scale-add" in line]
    assert sum(line.count("Python Stack[") for line in operators) == shown


def test_one_module_may_show_more_of_the_stack(capsys):
    graph = Step()
    graph.debug(0, max_py_stack_depth=1, op_repr_with_py_stack=True)
    graph.scale.to(GraphModule).debug(0, max_py_stack_depth=2, op_repr_with_py_stack=True)
    graph(torch.ones(2, 3))
    shown = {
        kind: {
            line.count("Python Stack[")
            for line in str(graph).splitlines()
            if f"(OPERATOR: {kind}-" in line and "phase" not in line
        }
        for kind in ("scale-add", "linear-addmm")
    }
    assert shown == {"scale-add": {2}, "linear-addmm": {1}}
    assert str(graph.scale).count("Python Stack[-2]") > 0


@pytest.mark.parametrize("only_user", [True, False])
def test_lines_of_libraries_where_they_are_asked_for(capsys, only_user):
    graph = Step()
    lines = lines_of(capsys, 3, None, 2, only_user, True, graph=graph)
    location = details(lines, "linear-addmm")[-1]
    assert ("torch/nn/modules/linear.py" in location) != only_user
    assert ("torch/nn/modules/linear.py" in str(graph)) != only_user
    assert f"'build' at '{__file__}'" in location
    assert "torchgraph/" not in location.replace(__file__, "")


def test_an_error_names_the_users_line_at_any_depth():
    class SpotChecks(tg.Graph):
        def build(self, x):
            return x.numpy().sum()

    graph = SpotChecks()
    graph.debug(-1, max_py_stack_depth=0, only_user_py_stack=False)
    with pytest.raises(DataDependent) as error:
        graph(torch.ones(2))
    assert error.value.where is not None
    assert error.value.where.filename == __file__


# --- -1, ranks ------------------------------------------------------------------------------------


def test_minus_1_is_silent_after_any_other(capsys):
    graph = Step()
    graph.debug(3)
    graph.scale.to(GraphModule).debug(3)
    lines = lines_of(capsys, -1, graph=graph, calls=4)
    assert lines == ["between", "forward ends", "build ends"] * 2
    assert capsys.readouterr() == ("", "")


@pytest.fixture
def rank_1(monkeypatch):
    monkeypatch.setenv("RANK", "1")


@pytest.mark.parametrize(("ranks", "prints"), [(None, False), (0, False), (1, True), (-1, True)])
def test_only_the_ranks_that_are_asked_print(capsys, rank_1, ranks, prints):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lines = lines_of(capsys, 2, ranks)
    assert bool([line for line in lines if line.startswith("(GRAPH:")]) == prints
    assert bool(added(lines)) == prints
