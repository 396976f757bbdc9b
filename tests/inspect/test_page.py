"""The data of a page."""

from __future__ import annotations

import operator
import re

import pytest
import torch
from torch import nn

import torchgraph as tg
from torchgraph.costs.activations import kept_by_node
from torchgraph.costs.op_calls import work_by_node
from torchgraph.errors import InvalidOption
from torchgraph.inspect.report import Report
from torchgraph.ir import text
from torchgraph.ir.each import is_item
from torchgraph.lower.cost import cost, seconds_by_node
from torchgraph.passes import Pass, run

from .models import Train, batch
from .pages import HOSTILE, data_of, trained


@pytest.fixture(scope="module")
def graph() -> Train:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return trained()


@pytest.fixture(scope="module")
def report(graph) -> Report:
    return graph.report()


def test_the_ops_are_those_of_the_program(graph, report):
    ops = data_of(report)["ops"]
    calls = [node for node in graph.program.nodes if node.op == "call_function"]
    lines = {line.strip() for _, line in text.lines(graph.program)}
    shown = [line.strip() for each in ops["text"] for line in each.splitlines()]

    assert len({len(column) for column in ops.values()}) == 1
    assert len(set(ops["name"])) == len(ops["name"])
    for node in calls:
        beginnings = (f"{node.name}: ", f"{node.name} = each of ")
        assert is_item(node) or any(line.startswith(beginnings) for line in shown), node.name
    assert set(shown) <= lines
    assert set(ops["name"]) == {n.name for n in calls if n.target is not operator.getitem}


def test_an_op_has_its_lines_outermost_last(report):
    data = data_of(report)
    ops = data["ops"]
    relu = ops["op"].index("relu")
    stack = [data["lines"][n] for n in data["stacks"][ops["stack"][relu]]]

    assert stack[0][0].endswith("models.py")
    assert stack[0][3] == "hidden = self.drop(torch.relu(self.norm(self.fc(x))))"
    assert stack[-1][2] == "build"


def test_what_modules_take_adds_up(graph, report):
    modules = data_of(report)["modules"]
    work = work_by_node(graph.program).values()
    seconds = sum(map(sum, modules["seconds"]))

    assert sum(modules["flops"]) == sum(one.flops for one in work)
    assert sum(modules["bytes"]) == sum(one.bytes for one in work)
    assert sum(modules["kept"]) == sum(kept_by_node(graph.program).values()) > 0
    assert seconds == pytest.approx(sum(seconds_by_node(graph.program).values()))
    assert seconds == pytest.approx(cost(graph.program).step_seconds)
    assert modules["path"][:2] == ["model", "model.fc"]
    assert modules["parent"][:2] == [-1, 0]
    assert sum(modules["parameters"]) == sum(p.numel() for p in graph.model.parameters())


def test_a_node_for_many_parameters_is_shared_out(report):
    modules = data_of(report)["modules"]
    update = {
        path: sum(seconds[2:])
        for path, seconds in zip(modules["path"], modules["seconds"], strict=True)
    }

    assert update["model.fc"] > 0
    assert update["model.norm"] > 0
    assert update["model.drop"] == 0


def accumulating(graph: Train) -> None:
    graph.config.set_gradient_accumulation_steps(2)


def in_an_arena(graph: Train) -> None:
    graph.config.enable_choose_best_memory_allocation(True)


@pytest.mark.parametrize("configure", [lambda graph: None, accumulating, in_an_arena])
def test_the_most_memory_is_the_planned_peak(configure):
    report = trained(configure=configure).report()
    shown = report._shown()
    data = data_of(report)
    values = data["plots"]["memory"]["data"]["values"]
    unit = {"B": 1, "KiB": 1024}[data["plots"]["memory"]["layer"][0]["encoding"]["y"]["title"]]
    most = round(max(value["total"] for value in values) * unit)

    assert shown.source.programs is not None
    assert len(shown.source.programs.lowered) == (3 if configure is accumulating else 1)
    if report.peaks.workspaces:  # what kernels take is not in the plot
        assert 0 < most <= report.peaks.planned
    else:
        assert most == report.peaks.planned
    assert data["tables"]["memory"][0]["rows"], "what is alive then"


def patched(lines: list[str], before: list[str], hunks: list[dict]) -> list[str]:
    """The text after a pass, by that before it and the differences."""
    after, at = [], 0
    for hunk in hunks:
        first = int(re.match(r"line (\d+)", hunk["at"])[1]) - 1
        after += before[at:first]
        at = first
        for sign, number in zip(hunk["signs"], hunk["lines"], strict=True):
            if sign != "+":
                assert before[at] == lines[number]
                at += 1
            if sign != "-":
                after.append(lines[number])
    return after + before[at:]


def test_the_differences_make_the_program_of_each_pass(report):
    programs = report.source.programs
    assert programs is not None
    diffs = data_of(report)["diffs"]
    texts: list[list[str]] = []
    run(
        programs.start(),
        programs.passes,
        programs.options.passes,
        on_pass=lambda _, program: texts.append(text.render(program).splitlines()),
    )
    before = text.render(programs.captured).splitlines()

    assert [one["name"] for one in diffs["by_pass"]] == [one.name for one in report.passes]
    assert any(one["hunks"] for one in diffs["by_pass"])
    for one, after in zip(diffs["by_pass"], texts, strict=True):
        assert patched(diffs["lines"], before, one["hunks"]) == after
        before = after
    assert before == text.render(programs.final).splitlines()


class Once(Pass):
    """A pass of a user's that may run once."""

    name = "once"
    runs = 0

    def exact(self, program) -> bool:
        return True

    def apply(self, program, edit) -> None:
        Once.runs += 1
        if Once.runs > 1:
            raise ValueError(HOSTILE)


def test_a_pass_that_fails_when_it_runs_again_leaves_its_part_out(tmp_path, monkeypatch):
    monkeypatch.setattr(Once, "runs", 0)
    graph = trained(configure=lambda graph: graph.config.passes.insert(Once(), after="cse"))
    report = graph.report()
    Once.runs = 1
    diffs = data_of(report)["diffs"]

    assert [one["name"] for one in diffs["by_pass"]] == ["canonicalize", "fold", "cse"]
    assert diffs["note"].startswith("A pass failed when it ran again: The pass 'once' raised")
    report.save_html(tmp_path / "page.html")


def test_passes_do_not_run_again_before_a_page_is_made(monkeypatch):
    monkeypatch.setattr(Once, "runs", 0)
    graph = trained(configure=lambda graph: graph.config.passes.insert(Once()))
    runs = Once.runs
    str(graph.report())
    assert Once.runs == runs


def test_guards_predicates_programs_and_refusals_have_all_rows(graph, report):
    tables = {t["title"]: t for each in data_of(report)["tables"].values() for t in each}

    guards = tables["A change of these needs another program"]
    assert guards["rows"] == [[one.name, one.value] for one in report.guards]
    assert [row[0] for row in tables["Programs: 1 of at most 8 held"]["rows"]] == [
        report.programs.held[0].signature
    ]
    assert tables["Branches on numbers that move"]["rows"]
    assert "Left alone by passes" in tables
    assert any(title.startswith("CUDA Graph: ") for title in tables)


class Branching(tg.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(4, 2)

    def build(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x) if x.sum() > 0 else -self.model(x)


def test_a_variant_is_a_row_and_what_python_read_is_another():
    graph = Branching()
    for sign in (1, 1, -1, -1, 1, -1):
        graph(sign * torch.rand(3, 4))
    data = data_of(graph.report())
    tables = {t["title"]: t for each in data["tables"].values() for t in each}
    predicates = tables["Values that Python read: another one needs another program"]

    assert len(tables["Programs: 2 of at most 8 held"]["rows"]) == 2
    assert len(predicates["rows"]) == 1
    assert predicates["rows"][0][2][1].startswith("return self.model(x) if x.sum() > 0")


# --- times that were measured ---------------------------------------------------------------------


class Timed:
    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds_by_node = seconds


@pytest.mark.parametrize("form", [dict, Timed])
def test_measured_times_take_the_place_of_estimates(graph, report, form):
    names = [
        node.name
        for node in graph.program.nodes
        if node.op == "call_function" and not is_item(node)
    ]
    seconds = dict.fromkeys(names, 0.25) | {"a_copy_that_lowering_made": 0.5}
    data = data_of(report, form(seconds))
    shown = dict(zip(data["ops"]["name"], data["ops"]["seconds"], strict=True))

    assert data["kind"] == "measured"
    assert shown["relu_default"] == 0.25
    assert sum(shown.values()) == 0.25 * len(names)  # results that are taken apart with their op
    assert sum(map(sum, data["modules"]["seconds"])) == pytest.approx(0.25 * len(names))
    assert data["notes"]["time"] == [
        "Measured by a profile: what each op takes in one step. 500 ms are of calls that lowering "
        "made."
    ]
    assert data["plots"]["modules"]["title"]["text"] == "Time by module, measured"
    assert data_of(report)["kind"] == "estimated"
    assert "not measured" in data_of(report)["notes"]["time"][0]


@pytest.mark.parametrize("given", [3, "fast", {"no_node_of_it": 1.0}, [("relu", 1.0)]])
def test_what_is_no_profile_of_the_program_is_refused(report, tmp_path, given):
    with pytest.raises(InvalidOption, match="profile"):
        report.save_html(tmp_path / "page.html", profile=given)
    assert not list(tmp_path.iterdir())


def test_a_profile_of_another_graph_is_refused(graph, report, tmp_path):
    other = trained()
    with pytest.raises(InvalidOption, match=f"is of {other.name}, this report of {graph.name}"):
        report.save_html(tmp_path / "page.html", profile=other.profile(*batch(4), weight=2.0))
    with pytest.raises(InvalidOption, match="another program"):
        report.save_svg(tmp_path / "page.svg", "modules", graph.profile(*batch(5), weight=2.0))
    assert not list(tmp_path.iterdir())
    report.save_html(tmp_path / "page.html", profile=graph.profile(*batch(4), weight=2.0))


def test_an_op_counts_once():
    """That which updates the parameters of several modules is of none of them."""
    data = data_of(trained().report())
    ops, modules = data["ops"], data["modules"]
    assert ops["module"][ops["op"].index("adamw")] == -1
    for phase in range(3):
        assert sum(each[phase] for each in modules["ops"]) == ops["phase"].count(phase)


def test_the_page_says_one_thing_of_calls_and_of_the_cuda_graph():
    data = data_of(trained().report())
    figures = dict(data["figures"])
    tables = {t["title"]: t for each in data["tables"].values() for t in each}
    kinds = ("calls by programs", "calls recorded", "calls in eager")
    assert [figures[kind] for kind in kinds] == ["2", "2", "0"]
    assert "Calls: 2 by programs, 2 recorded, 0 in eager" in tables
    graph = tables["CUDA Graph: nothing of the program is on a GPU"]
    assert graph["notes"] == ["What else would be in its way was not looked for."]
