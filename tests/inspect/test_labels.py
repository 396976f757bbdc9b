"""Labels for profilers: on every op of a replay, with phase and module; no bit changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from tests.replay.conftest import recording as recording
from tests.support import replay_of, settle
from torchgraph.lower.write.around import label_of

from .models import Train, batch, trainer

PHASES = ("forward", "backward", "update")


def traced(graph: Any, path: Path, *arguments: Any) -> list[dict[str, Any]]:
    """The events of one call, as torch's profiler writes them; labels are there from before."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True):
        graph(*arguments)
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
        graph(*arguments)
    profiler.export_chrome_trace(str(path))
    return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


def ready(graph: Any) -> None:
    """Programs serve calls with other data than those that they were made of."""
    for _ in range(2):
        settle(graph, *batch())


def labels(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [one for one in events if one.get("cat") == "user_annotation"]
    return [one for one in found if one["name"].startswith(PHASES)]


def around(event: dict[str, Any], spans: list[dict[str, Any]]) -> set[str]:
    start, end = event["ts"], event["ts"] + event["dur"]
    return {s["name"] for s in spans if s["ts"] <= start and end <= s["ts"] + s["dur"]}


def test_every_op_is_labelled_while_a_profiler_records(tmp_path):
    graph = trainer()
    ready(graph)
    events = traced(graph, tmp_path / "trace.json", *batch())
    spans = labels(events)
    computing = ("addmm", "mm", "relu_", "_native_batch_norm_legit", "native_batch_norm_backward")
    computing += ("bernoulli_", "mse_loss", "mse_loss_backward", "lerp_", "addcdiv_", "sqrt_")
    ops = [one for one in events if one.get("cat") == "cpu_op"]
    found = [one for one in ops if one["name"].removeprefix("aten::") in computing]
    assert {one["name"] for one in found} >= {"aten::addmm", "aten::mm", "aten::addcdiv_"}
    for op in found:
        assert around(op, spans), op["name"]
    names = {op["name"]: set() for op in found}
    for op in found:
        names[op["name"]] |= around(op, spans)
    assert names["aten::addmm"] == {"forward: model.fc", "forward: model.head"}
    assert names["aten::mm"] == {"backward: model.fc", "backward: model.head"}
    owners = ("fc", "norm", "head")
    assert names["aten::addcdiv_"] == {"update", *(f"update: model.{one}" for one in owners)}


def test_all_nodes_of_the_program_are_labelled(tmp_path):
    graph = trainer()
    ready(graph)
    expected = {
        label_of(node)
        for node in replay_of(graph).executable.programs[0].nodes
        if node.op == "call_function"
    }
    found = {one["name"] for one in labels(traced(graph, tmp_path / "trace.json", *batch()))}
    assert expected <= found


def test_none_without_a_profiler(tmp_path):
    graph = trainer()
    ready(graph)
    replay = replay_of(graph)
    assert replay._labels._labelled is None  # not even written
    traced(graph, tmp_path / "trace.json", *batch())
    graph(*batch())
    assert replay._function == replay.executable.function  # again the one without


def test_on_by_option():
    graph = trainer()
    ready(graph)
    graph.config.enable_profiler_labels()
    replays_before = replay_of(graph)
    graph(*batch())
    assert replay_of(graph) is replays_before  # nothing was recorded anew
    assert replays_before._function != replays_before.executable.function
    graph.config.enable_profiler_labels(False)
    graph(*batch())
    assert replays_before._function == replays_before.executable.function


def train(*, labelled: bool, micro_batches: int = 1, compress: bool = False) -> list[Any]:
    torch.manual_seed(5)
    graph = trainer()
    graph.config.enable_profiler_labels(labelled)
    graph.config.set_gradient_accumulation_steps(micro_batches)
    graph.config.enable_compress_memory(compress)
    losses = [graph(*batch(4)) for _ in range(6)]
    return [*losses, *(one.detach() for one in graph.model.parameters()), torch.get_rng_state()]


@pytest.mark.parametrize(("micro_batches", "compress"), [(1, False), (2, False), (1, True)])
def test_no_bit_changes(micro_batches, compress):
    settings = {"micro_batches": micro_batches, "compress": compress}
    plain, labelled = train(labelled=False, **settings), train(labelled=True, **settings)
    assert all(map(torch.equal, plain, labelled))


def test_compiled_code(interpreted, tmp_path):
    graph = trainer()
    graph.config.set_backend("inductor")
    ready(graph)
    found = {one["name"] for one in labels(traced(graph, tmp_path / "trace.json", *batch()))}
    assert "forward and backward: region_0" in found


def test_a_failure_is_put_back_as_without():
    class Index(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(4, 2)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.table(ids)

    model = Index()
    graph = Train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    graph.config.enable_profiler_labels()
    ids, y = torch.tensor([0, 1]), torch.zeros(2, 2)
    settle(graph, ids, y)
    before = model.table.weight.detach().clone()
    with pytest.raises(IndexError, match="out of range"):  # eager's, which runs the call
        graph(torch.tensor([0, 9]), y)
    assert torch.equal(model.table.weight, before)
    graph(ids, y)
    assert not torch.equal(model.table.weight, before)


def test_a_cuda_graph_is_captured_with_labels(recording):
    graph = trainer(torch.optim.SGD, lr=0.1)
    graph.config.enable_profiler_labels()
    graph.config.set_cuda_graph("auto")
    ready(graph)
    source = replay_of(graph).executable.source
    assert "forward: model.fc" in source
    assert {"warm-up", "capture"} <= set(recording[-1].events)


def test_the_option_is_no_part_of_a_program():
    graph = trainer()
    before = graph.config.options
    graph.config.enable_profiler_labels()
    assert graph.config.options == before
