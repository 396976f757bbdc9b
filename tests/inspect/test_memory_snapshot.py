"""The planned memory as a snapshot: what torch's own tools read, and what the viewer can."""

from __future__ import annotations

import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.cuda import _memory_viz as viz

import torchgraph as tg
from tests.replay.conftest import recording as recording
from tests.support import replay_of, settle
from torchgraph.errors import CheckpointFileError, NoProgram
from torchgraph.inspect.formats.drawn import Drawn, in_order
from torchgraph.inspect.formats.memory_snapshot import snapshot
from torchgraph.ir.program import Role
from torchgraph.lower.memory.planning import planned_peak
from torchgraph.replay.cuda.cuda_graph import CudaGraph
from torchgraph.testing import counters

from .models import Evaluate, Net, batch, trainer

OPCODES = frozenset(
    {
        *("APPEND", "APPENDS", "BINFLOAT", "BINGET", "BININT", "BININT1", "BININT2", "BINPUT"),
        *("BINUNICODE", "DICT", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "FRAME", "LIST"),
        *("LONG1", "LONG_BINGET", "LONG_BINPUT", "MARK", "MEMOIZE", "NEWFALSE", "NEWTRUE", "NONE"),
        *("PROTO", "SETITEM", "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE", "TUPLE1", "TUPLE2"),
        "TUPLE3",
    }
)
"""What ``unpickle`` of MemoryViz.js reads; it refuses a file with any other."""


def saved(graph: Any, path: Path) -> dict[str, Any]:
    graph.report().save_memory_snapshot(path)
    return pickle.loads(path.read_bytes())


def live(trace: list[dict[str, Any]], keep: Any = lambda event: True) -> list[int]:
    """Bytes after each event."""
    now, found = 0, []
    for event in trace:
        if keep(event) and event["action"] == "alloc":
            now += event["size"]
        if keep(event) and event["action"] == "free_completed":
            now -= event["size"]
        found.append(now)
    return found


def own(trace: list[dict[str, Any]]) -> list[int]:
    """Bytes of what the step itself allocates, after each event."""
    before = ("parameter", "buffer", "optimizer_state", "input", "cast", "constant")
    names = {e["addr"] for e in trace if e["action"] == "alloc" and e["category"] in before}
    return live(trace, lambda event: event["addr"] not in names)


@pytest.mark.parametrize("mode", ["plain", "ordered", "accumulated", "half", "evaluation"])
def test_its_peak_is_the_planned_one(mode, tmp_path):
    graph: Any = Evaluate(Net().eval()) if mode == "evaluation" else trainer()
    arguments = batch(4)[: 1 if mode == "evaluation" else 2]
    if mode == "ordered":
        graph.config.enable_straighten_algorithm()
    if mode == "accumulated":
        graph.config.set_gradient_accumulation_steps(2)
    if mode == "half":
        graph.config.enable_amp(dtype=torch.bfloat16)
    graph(*arguments)
    (trace,) = saved(graph, tmp_path / "step.pickle")["device_traces"]
    planned = _planned(graph)
    if mode != "accumulated":
        assert max(own(trace)) == planned
    else:  # and what the first micro-batch returned
        assert planned < max(own(trace)) <= planned + 16


def _planned(graph: Any) -> int:
    """As `report()` has it, but without what kernels take."""
    most = 0
    for one in in_order(replay_of(graph).executable):
        specs = one.program.signature.roles(Role.ACCUMULATOR)
        held = sum(spec.meta.nbytes for spec in specs if spec.meta is not None)
        most = max(most, held + planned_peak(one.memory, one.program, {}))
    return most


def test_before_anything_ran(tmp_path):
    """After one call in eager, which is recorded: no program has run."""
    graph, ran = trainer(), counters.replays
    graph(*batch())
    assert saved(graph, tmp_path / "step.pickle")["device_traces"][0]
    assert counters.replays == ran


def test_what_it_says(tmp_path):
    graph = trainer()
    settle(graph, *batch())
    found = saved(graph, tmp_path / "step.pickle")
    (trace,) = found["device_traces"]
    categories = {event["category"] for event in trace if event["action"] == "alloc"}
    wanted = {"parameter", "buffer", "optimizer_state", "input", "activation", "gradient"}
    assert wanted | {"temporary", "output"} <= categories
    sizes = {c: sum(e["size"] for e in trace if e.get("category") == c) for c in categories}
    memory = graph.report().memory
    assert sizes["parameter"] == memory.parameters
    assert sizes["optimizer_state"] == memory.slots
    (fc,) = [
        e for e in trace if e["frames"][0]["name"] == "addmm_default" and e["action"] == "alloc"
    ]
    assert fc["frames"][0]["filename"] == "forward: model.fc"
    assert fc["frames"][1]["filename"].endswith("models.py")
    assert fc["frames"][1]["name"] == "forward"
    names = {e["frames"][0]["name"] for e in trace if e.get("category") == "parameter"}
    assert "model.fc.weight" in names


@pytest.mark.parametrize("compress", [False, True])
def test_torchs_own_tools_read_it(compress, tmp_path):
    graph = wide(compress=compress)
    found = saved(graph, tmp_path / "step.pickle")
    assert "total_allocated" in viz.segsum(found)
    text = viz.trace(found)
    assert " = " in text
    assert ("cudaMalloc" in text) is compress  # the arena is a segment that comes and goes
    lines: list[str] = []
    viz.memory(found, format_flamegraph=lambda one: lines.append(one) or "")
    assert "active_allocated" in lines[0]
    viz.segments(found, format_flamegraph=lambda one: lines.append(one) or "")
    assert "<gaps>" in lines[1] or "inactive" in lines[1]
    assert "snapshot.pickle" in viz.trace_plot(found)
    assert "snapshot.pickle" in viz.segment_plot(found)


def wide(*, compress: bool) -> tg.Graph:
    """A step with activations that an arena pays for."""
    graph = _Wide(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU()))
    graph.config.enable_compress_memory(compress)
    graph(torch.randn(256, 64), torch.randn(256, 64))
    return graph


class _Wide(tg.Graph):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))

    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        return loss


@pytest.mark.parametrize("compress", [False, True])
def test_what_the_viewer_relies_on(compress, tmp_path):
    """MemoryViz.js fails, or draws nonsense, where one of these does not hold."""
    graph = wide(compress=compress)
    path = tmp_path / "step.pickle"
    found = saved(graph, path)
    assert {op.name for op, _, _ in pickletools.genops(path.read_bytes())} <= OPCODES
    (trace,) = found["device_traces"]
    assert "unknown" in {event.get("category") for event in trace}
    segments = {s["address"]: s["address"] + s["total_size"] for s in found["segments"]}
    taken: dict[int, int] = {}
    for number, event in enumerate(trace):
        start, end = event["addr"], event["addr"] + event["size"]
        match event["action"]:
            case "segment_alloc":
                segments[start] = end
            case "segment_free":
                del segments[start]
            case "alloc":
                assert any(a <= start and end <= b for a, b in segments.items())
                assert all(end <= a or b <= start for a, b in taken.items())
                taken[start] = end
            case "free_requested":
                after = trace[number + 1]
                assert (after["action"], after["addr"]) == ("free_completed", start)
            case "free_completed":
                assert taken.pop(start) == end
    left = {}
    for segment in found["segments"]:
        at = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                left[at] = at + block["requested_size"]
            at += block["size"]
        assert at == segment["address"] + segment["total_size"]
    assert left == taken


def test_of_a_cuda_graph(recording):
    """Its memory is that of the functions which it captures."""
    graph = trainer(torch.optim.SGD, lr=0.1)
    settle(graph, *batch())
    replay = replay_of(graph)
    assert isinstance(replay.executable, CudaGraph)
    (trace,) = snapshot(Drawn.of(replay.program, replay.executable))["device_traces"]
    names = {event["frames"][0]["name"] for event in trace}
    assert {"model.fc.weight", "addmm_default"} <= names


def test_a_path_that_cannot_be_written(tmp_path):
    graph = trainer()
    graph(*batch())
    with pytest.raises(CheckpointFileError):
        graph.report().save_memory_snapshot(tmp_path / "nowhere" / "step.pickle")


def test_a_step_that_stays_in_eager(tmp_path):
    class Numpy(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.from_numpy(x.numpy() + 1)

    graph = Evaluate(Numpy())
    graph.config.set_fallback("eager")
    with pytest.warns(tg.errors.EagerWarning):
        graph(torch.ones(2))
    with pytest.raises(NoProgram, match="stays in eager"):
        graph.report().save_memory_snapshot(tmp_path / "step.pickle")
    with pytest.raises(NoProgram, match="stays in eager"):
        graph.report().save_model_explorer(tmp_path / "step.json")
