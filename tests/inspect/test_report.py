"""graph.report(): its data, and what it looks like."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from torch import nn

import torchgraph as tg
from tests.contract.models import Function
from tests.support import settle
from torchgraph import _extension
from torchgraph.errors import EagerWarning, NotCompiled
from torchgraph.inspect.baked import BakedKind
from torchgraph.inspect.report import Report
from torchgraph.ir.program import Phase

from .models import Evaluate, Net, batch, trainer


@pytest.fixture(scope="module")
def report() -> Report:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        graph = trainer()
        for _ in range(5):  # three are recorded: AdamW's slots come with the first
            graph(*batch(), weight=2.0)
        return graph.report()


def test_before_the_first_call_it_says_that_there_was_none():
    graph = trainer()
    found = graph.report()
    assert found.backend == "eager"
    assert "has not been called yet" in found.no_program
    assert "has not been called yet" in str(found)
    with pytest.raises(NotCompiled):
        graph.program  # noqa: B018


def test_stages_and_passes(report):
    assert [stage.name for stage in report.stages] == [
        "building graph",
        "building graph from the step that ran",
        "building graph with compile passes",
        "building plan",
        "first run",
    ]
    assert all(stage.seconds > 0 for stage in report.stages)
    names = ["canonicalize", "fold", "cse", "delay_variables", "prune_depend", "dce"]
    names.append("overlap_collectives")
    assert [record.name for record in report.passes] == names
    assert all(record.exact for record in report.passes)


def test_the_time_of_a_step():
    graph = trainer()
    graph(*batch())
    assert graph.report().steps is None
    assert "per step" not in str(graph.report())
    for _ in range(73):
        graph(*batch())
    steps = graph.report().steps
    assert steps is not None
    assert steps.count == 64  # of the last ones
    assert 0 < steps.fastest <= steps.median <= steps.slowest
    assert "ms per step on the host, median of the last 64" in str(graph.report())


def test_nodes_by_phase(report):
    assert [count.phase for count in report.nodes] == list(Phase)
    assert sum(count.captured for count in report.nodes) == report.passes[0].nodes_before
    assert sum(count.after_passes for count in report.nodes) == report.passes[-1].nodes_after
    assert all(0 < count.in_place < count.after_passes <= count.captured for count in report.nodes)
    assert sum(c.after_passes for c in report.nodes) < sum(c.captured for c in report.nodes)


def test_memory(report):
    parameters = 4 * (4 * 8 + 8 + 8 + 8 + 8 * 2 + 2)
    assert report.memory.parameters == parameters
    assert report.memory.buffers == 4 * (8 + 8) + 8
    assert report.memory.slots == 2 * parameters + 6 * 4
    assert report.memory.constants == 2 * 4
    assert report.memory.inputs == 4 * 3 * (4 + 2)
    assert report.memory.total == 3 * parameters + 6 * 4 + 72 + 8 + 72


def test_guards(report):
    guards = {guard.name: guard.value for guard in report.guards}
    assert guards["model.scale"] == "0.5"
    assert guards["model.norm.eps"] == "1e-05"
    assert guards["model.drop.training"] == "True"
    assert guards["optimizer.0.param_groups.0.amsgrad"] == "False"
    assert "optimizer.0.param_groups.0.lr" not in guards


def test_the_form_of_the_guards(monkeypatch):
    forms = {"python": "in Python"}
    if _extension.guards() is not None:
        forms["compiled"] = "by compiled code"
    for form, words in forms.items():
        with monkeypatch.context() as patch:
            if form == "python":
                patch.setattr(_extension, "guards", lambda: None)
            graph = trainer()
            settle(graph, *batch(), weight=2.0)
        report = graph.report()
        assert report.guard_form == form
        assert words in str(report)
    assert "optimizer.0.param_groups.0.lr" in report.moving


def test_branches(report):
    (branch,) = report.branches
    assert branch.condition == "optimizer.0.param_groups.0.weight_decay != 0"
    assert (branch.taken, branch.count) == ("True", 1)  # the group's number: one decision


def test_branches_of_an_optimizer_that_decides_by_step():
    graph = trainer(torch.optim.RAdam)
    for _ in range(2):  # the first makes the counters
        graph(*batch())
    (branch,) = [one for one in graph.report().branches if one.condition.endswith("> 5.0")]
    assert "optimizer.0.state.*.step + 1" in branch.condition
    assert (branch.taken, branch.count) == ("False", 6)


def test_baked_numbers_name_the_line(report):
    numbers = {(b.name, b.value): b for b in report.baked if b.kind is BakedKind.NUMBER}
    scale = numbers["other", "0.5"]
    assert scale.line is not None
    assert "self.scale" in scale.line.text
    assert scale.ops == ("mul",)
    assert scale.count == 2  # forward and backward
    assert numbers["p", "0.75"].ops == ("bernoulli", "div")
    assert numbers["eps", "1e-05"].ops == ("native_batch_norm", "native_batch_norm_backward")
    assert ("momentum", "0.1") in numbers
    assert not any("optim" in (b.line.filename if b.line else "") for b in numbers.values())


def test_baked_arguments_and_constants(report):
    (argument,) = [b for b in report.baked if b.kind is BakedKind.ARGUMENT]
    assert (argument.name, argument.value) == ("args[2]", "2.0")
    (constant,) = [b for b in report.baked if b.kind is BakedKind.CONSTANT]
    assert (constant.value, constant.nbytes, constant.ops) == ("f32[2]", 8, ("add",))
    assert constant.line is not None
    assert "torch.tensor([0.5, 0.25])" in constant.line.text


class _Halving(torch.optim.Optimizer):
    def __init__(self, params) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad * 0.125)


def test_baked_numbers_of_a_users_optimizer():
    graph = trainer(_Halving)
    graph(*batch())
    (entry,) = [b for b in graph.report().baked if b.value == "0.125"]
    assert entry.line is not None
    assert "p.grad * 0.125" in entry.line.text
    assert entry.count == 6


def test_programs_in_the_cache():
    graph = trainer()
    for _ in range(5):
        graph(*batch(3))
    for _ in range(3):
        graph(*batch(5))
    graph.model.eval()
    for _ in range(3):
        graph(*batch(5))
    programs = graph.report().programs
    assert (programs.hits, programs.captures, programs.size) == (5, 3, 8)
    assert [held.signature for held in programs.held] == [
        "args[0]: float32[3, 4], args[1]: float32[3, 2]",
        "args[0]: float32[5, 4], args[1]: float32[5, 2]",
        "args[0]: float32[5, 4], args[1]: float32[5, 2]",
    ]
    assert [held.runs for held in programs.held] == [3, 1, 1]
    assert [held.reported for held in programs.held] == [False, False, True]
    assert programs.reasons == ("model.norm.training changed",) * 2  # both recorded calls say it
    assert "3 of at most 8 held; hits: 5, misses: 3" in str(graph.report())


class Signs(tg.Graph):
    """Python looks at a value, and goes on by it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(4, 2)

    def build(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x) if x.sum() > 0 else -self.model(x)


def test_a_hit_is_a_call_that_was_served():
    graph = Signs()
    for sign in (1, 1, -1, -1, 1, -1, 1):
        graph(sign * torch.rand(3, 4))
    graph.check(torch.rand(3, 4))
    graph.profile(torch.rand(3, 4))
    report = graph.report()
    assert report.programs.hits == sum(held.runs for held in report.programs.held) == 3
    assert report.calls.programs == 3


def test_variants_of_one_signature_are_told_apart():
    graph = Signs()
    graph.config.set_backend("aten")
    for sign in (1, 1, -1, -1, 1, -1, 1):
        graph(sign * torch.rand(3, 4))
    report = graph.report()
    line = "return self.model(x) if x.sum() > 0 else -self.model(x)"
    told = [held.told for held in report.programs.held]
    assert sorted(one.partition(" ")[0] for one in told) == ["False", "True"]
    assert all("test_report.py:" in one and line in one for one in told)
    assert f"{told[0]}"[:40] in str(report)
    (table,) = [t for t in report._page_tables()["programs"] if t.title.startswith("Programs")]
    assert [row[0].partition("; ")[2] for row in table.rows] == told

    graph = trainer()
    for _ in range(3):
        graph(*batch())
    assert [held.told for held in graph.report().programs.held] == [""]
    graph.model.eval()
    for _ in range(3):
        graph(*batch())
    told = [held.told for held in graph.report().programs.held]
    assert "model.norm.training = True" in told[0]
    assert "model.norm.training = False" in told[1]


def test_figures_have_digits():
    graph = trainer()
    for _ in range(4):
        graph(*batch())
    report = graph.report()
    assert report.steps.count == 1
    assert re.search(r"^[\d.]+ ms on the host for the last step$", str(report), re.MULTILINE)
    assert "(" not in str(report).splitlines()[3]
    quick = [replace(stage, seconds=0.0000934) for stage in report.stages]
    shown = str(replace(report, stages=tuple(quick)))
    assert re.search(r"^first run +0\.000093$", shown, re.MULTILINE)
    passes = [replace(one, seconds=4.2e-6) for one in report.passes]
    assert "0.0042" in str(replace(report, passes=tuple(passes)))


def test_what_programs_serve():
    graph = trainer()
    for weight in (1.5, 2.0):
        for _ in range(3):
            graph(*batch(), weight=weight)
    told = [held.signature for held in graph.report().programs.held]
    tensors = "args[0]: float32[3, 4], args[1]: float32[3, 2]"
    assert told == [f"{tensors}, args[2] = {weight}" for weight in (1.5, 2.0)]


def test_gradients_are_counted():
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @tg.step
    def step(x: torch.Tensor, last: bool) -> None:
        model(x).sum().backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()

    for number in range(8):
        step(torch.ones(3, 4), number % 2 == 1)
    report = step.report()
    first, last = (held.signature for held in report.programs.held)
    assert first == "args[0]: float32[3, 4], args[1] = False"
    assert last == "args[0]: float32[3, 4], args[1] = True, 2 gradients"
    assert not any("path" in guard.name for guard in report.guards)  # of an import on the way


def test_of_a_step_without_a_program():
    graph = Function(lambda x: x + random.random())
    graph.config.set_fallback("eager")
    with pytest.warns(EagerWarning):
        [graph(torch.ones(2)) for _ in range(30)]
    assert "no program: the step runs in eager\n" in str(graph.report())


def test_what_a_program_holds():
    """Its constants, and the casts of weights that it keeps."""
    graph = trainer()
    settle(graph, *batch())
    (held,) = graph.report().programs.held
    assert held.nbytes == graph.report().memory.constants == 2 * 4
    assert held.peak == graph.report().peaks.planned
    graph = trainer()
    graph.config.enable_amp(dtype=torch.bfloat16)
    graph.config.enable_fused_model_update_cast()
    settle(graph, *batch())
    report = graph.report()
    assert report.memory.derived > 0
    (held,) = report.programs.held
    assert held.nbytes == report.memory.constants + report.memory.derived


@pytest.mark.parametrize("calls", [1, 2])
def test_of_a_step_that_is_not_confirmed(calls):
    """The first one makes the slots: they are no inputs of it."""
    graph = trainer(torch.optim.SGD, lr=0.1, momentum=0.9)
    for _ in range(calls):
        graph(*batch())
    report = graph.report()
    assert report.memory.slots == (report.memory.parameters if calls == 2 else 0)
    assert report.memory.inputs == 4 * 3 * (4 + 2)
    assert report.programs.held == ()
    assert [count.captured > 0 for count in report.nodes] == [True, True, True]
    assert len(str(graph)) > 0


def test_evaluation():
    graph = Evaluate(Net().eval())
    graph(batch()[0])
    report = graph.report()
    assert [count.after_passes > 0 for count in report.nodes] == [True, False, False]
    assert (report.branches, report.moving, report.memory.slots) == ((), (), 0)
    assert "Branches" not in str(report)


def test_of_a_transform_that_makes_tensors_of_numbers():
    graph = Function(lambda x: torch.func.vmap(lambda row: row.sum() * 1.0)(x))
    for _ in range(3):
        graph(torch.ones(4, 6))
    assert graph.report().precision == ()


def test_text(report):
    text = str(report)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    for part in ("Passes", "canonicalize", "update", "optimizer slots", "weight_decay", "0.75"):
        assert part in text
    assert "test_report.py" not in text  # numbers come from the model's file
    assert "models.py:" in text


def test_rich(report):
    screen = Console(width=80, force_terminal=True, color_system="standard")
    with screen.capture() as capture:
        screen.print(report)
    assert "\x1b" in capture.get()
    assert "canonicalize" in capture.get()
