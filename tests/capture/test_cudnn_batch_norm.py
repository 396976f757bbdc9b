"""Batch norms that eager computes with cuDNN: the program calls the same kernel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests import cudnn, support
from tests.deploy.steps import loaded
from torchgraph.capture.functional import functionalize
from torchgraph.ir.batch_norms import NATIVE, VENDOR, WITHOUT_STATISTICS, is_batch_norm
from torchgraph.ir.program import Program
from torchgraph.record.ops import recorder
from torchgraph.record.ops.rewritten import rewritten
from torchgraph.testing import Setup, assert_parity, counters

_OF_TORCH = torch.ops.aten.native_batch_norm_backward.default
SILENT = "cudnn_batch_norm"
TOLD = "_batch_norm_with_update_functional"


NORMS: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "statistics": (lambda: cudnn.BatchNorm(4), [TOLD]),
    "no statistics": (lambda: cudnn.BatchNorm(4, track_running_stats=False), [SILENT]),
    "instance norm": (lambda: cudnn.InstanceNorm(4), [SILENT]),
    "frozen": (lambda: cudnn.BatchNorm(4).eval(), [SILENT]),
}


class _Net(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1), norm
        self.last = nn.Conv2d(4, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.norm(self.first(x)).relu())
        return out


class _Evaluate(tg.Graph):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def build(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)


class _Train(tg.Graph):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    def build(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHGRAPH_VERIFY", "strict")


@pytest.fixture(params=["copied", "traced"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to a functional program; views lead to the second."""
    if request.param == "traced":
        monkeypatch.setattr(functionalize, "functional_form", lambda graph, mode: None)
    return request.param


def _norms(program: Program) -> list[str]:
    return [one for one in support.targets(program) if "batch_norm" in one and "ward" not in one]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_training_is_eagers(norm: str, layout: torch.memory_format, way: str) -> None:
    batch = (torch.randn(2, 3, 6, 6).to(memory_format=layout),)
    with counters.expect(replays=2):
        assert_parity(lambda: _setup(NORMS[norm][0](), layout), [batch] * 4)


def _setup(norm: nn.Module, layout: torch.memory_format, device: str = "cpu") -> Setup:
    model = _Net(norm).to(device, memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Setup(model, optimizer, lambda m, x: m(x).square().mean())


@pytest.mark.parametrize("norm", NORMS)
def test_the_program_calls_eagers_kernel(norm: str, way: str) -> None:
    make, calls = NORMS[norm]
    graph = _Train(_Net(make()))
    support.settle(graph, torch.randn(2, 3, 6, 6))
    assert _norms(graph.program) == calls


def test_evaluation_is_eagers_and_is_exported(tmp_path: Path) -> None:
    _evaluates(cudnn.BatchNorm(4), torch.device("cpu"), tmp_path / "step.pt2")


def _evaluates(norm: nn.Module, device: torch.device, file: Path) -> None:
    model, x = _Net(norm).to(device).eval(), torch.randn(2, 3, 6, 6, device=device)
    graph = _Evaluate(model)
    assert torch.equal(support.settle(graph, x), model(x))
    assert _norms(graph.program) == [SILENT]
    tg.export(graph, file)
    assert torch.equal(loaded(file)(x), model(x))


@pytest.mark.parametrize("norm", NORMS)
def test_oneflows_colours_leave_it_in_float32(norm: str) -> None:
    """cuDNN's kernels take no bfloat16."""
    graph = _Train(_Net(NORMS[norm][0]()))
    graph.config.enable_amp(dtype=torch.bfloat16, policy="oneflow")
    support.settle(graph, torch.randn(2, 3, 6, 6))
    found = [node for node in graph.program.nodes if is_batch_norm(node.target)]
    for node in found:
        dtypes = {one.meta["val"].dtype for one in node.all_input_nodes}
        assert torch.bfloat16 not in dtypes or node.target is _OF_TORCH


EAGERS = [
    (norm.eager, statistics, training)
    for norm in (NATIVE, VENDOR)
    for statistics in (True, False)
    for training in (True, False)
    if statistics or training
]


@pytest.mark.parametrize(("op", "statistics", "training"), EAGERS)
def test_a_call_is_written_down_with_as_many_results(
    op: Any, statistics: bool, training: bool
) -> None:
    running = ("mean", "var") if statistics else (None, None)
    given = ("x", "weight", "bias", *running, training, 0.1, 1e-5)
    told, (args, kwargs) = rewritten(op, given, {})
    assert len(told._schema.returns) == len(op._schema.returns)
    assert told._schema.is_mutable == (training and statistics)
    assert (len(args), kwargs) == (len(told._schema.arguments), {})


def test_another_count_of_results_is_no_crash(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """The values of one op for another: where torch is handed them, it does not count."""

    def wrong(op: Any, args: Any, kwargs: Any) -> Any:
        if op is VENDOR.eager:
            return WITHOUT_STATISTICS, ((*args[:3], *args[5:]), kwargs)
        return rewritten(op, args, kwargs)

    monkeypatch.setattr(recorder, "rewritten", wrong)
    graph = _Evaluate(_Net(cudnn.InstanceNorm(4)))
    with pytest.warns(tg.errors.EagerWarning, match="no_stats returns 3 values, not 4"):
        graph(torch.randn(2, 3, 6, 6))


def _of_torch(norm: str) -> nn.Module:
    if norm == "instance norm":
        return nn.InstanceNorm2d(4, affine=True)
    return nn.BatchNorm2d(4, track_running_stats=norm != "no statistics").train(norm != "frozen")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_training_on_a_gpu(
    norm: str, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    batch = (torch.randn(2, 3, 6, 6).cuda().to(memory_format=layout),)
    with counters.expect(replays=2):
        graph = assert_parity(lambda: _setup(_of_torch(norm), layout, "cuda"), [batch] * 4)
    assert _norms(graph.program) == NORMS[norm][1]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_evaluation_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    _evaluates(nn.BatchNorm2d(4), torch.device("cuda"), tmp_path / "step.pt2")
