"""Steps that are no CUDA Graph: run op by op, listed in the report, an error where one is required.

On the recording device all tensors are on the CPU; tests/lower/test_scan.py has the findings that
need two devices.
"""

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.parity.models import Mlp, batches
from tests.replay.recording import Recording
from tests.support import confirm
from torchgraph.errors import BackendWarning, CudaGraphRefused, InvalidOption
from torchgraph.testing import counters

pytestmark = pytest.mark.usefixtures("without_looks")


class Picks(tg.Graph):
    def build(self, x):
        return x[x > 0]  # HERE


def scaled(scaler):
    model = Mlp()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    graph = tg.train_step(model, nn.functional.cross_entropy, optimizer)
    graph.set_grad_scaler(scaler)
    return graph


def test_auto_runs_it_op_by_op_and_reports_the_line(recording):
    graph = Picks()
    with counters.expect(graph_captures=0, replays=3):
        for _ in range(5):
            assert graph(torch.tensor([1.0, -1.0, 2.0])).tolist() == [1, 2]
    report = graph.report()
    assert report.cuda_graph == "refused"
    reasons = [refusal.reason for refusal in report.refusals]
    assert reasons[0] == "index.Tensor: the shape of its result depends on data"
    assert reasons[1:] == ["the host waits for a value that Python has read"]
    assert all(refusal.line.text.endswith("# HERE") for refusal in report.refusals)
    text = str(report)
    assert "CUDA Graph: refused" in text
    assert "test_refused.py" in text
    assert recording == []


def test_filling_by_a_mask_is_rewritten(recording):
    class Fills(tg.Graph):
        def build(self, x):
            x = x.clone()
            x[x < 0] = 7
            return x

    graph = Fills()
    graph.config.set_cuda_graph("require")
    for number in (1.0, 2.0, 3.0, 4.0, 5.0):
        assert graph(torch.tensor([number, -number, -0.0])).tolist() == [number, 7, 0]


def test_require_raises_with_the_line(recording):
    graph = Picks()
    graph.config.set_cuda_graph("require")
    assert graph(torch.ones(3)).tolist() == [1, 1, 1]  # eager's: known when it cannot be undone
    with pytest.raises(CudaGraphRefused, match=r"depends on data(?s:.*)# HERE") as raised:
        graph(torch.ones(3))
    assert raised.value.where.filename == __file__
    graph.config.set_cuda_graph("auto")
    assert graph(torch.ones(3)).tolist() == [1, 1, 1]


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_without_a_gpu_nothing_is_said(mode):
    model = Mlp()
    graph = tg.train_step(model, nn.functional.cross_entropy, optim.SGD(model.parameters(), lr=0.1))
    graph.config.set_cuda_graph(mode)
    with counters.expect(graph_captures=0, replays=3):
        for batch in batches(Mlp, 5):
            graph(*batch)
    said = "off" if mode == "off" else "nothing of the program is on a GPU"
    assert graph.report().cuda_graph == said


def test_without_a_gpu_require_raises():
    model = Mlp()
    optimizer = optim.AdamW(model.parameters())
    graph = tg.train_step(model, nn.functional.cross_entropy, optimizer)
    graph.config.set_cuda_graph("require")
    data = batches(Mlp, 3)
    graph(*data[0])
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(CudaGraphRefused, match="nothing of the program is on a GPU"):
        graph(*data[1])
    assert all(map(torch.equal, before, model.parameters()))
    assert {slots["step"].item() for slots in optimizer.state.values()} == {1}


def test_a_static_scaler_is_a_number(recording):
    graph = scaled(tg.amp.StaticGradScaler(8.0))
    graph.config.set_cuda_graph("require")
    with counters.expect(graph_captures=1, graph_replays=2):
        for batch in batches(Mlp, 5):
            graph(*batch)


def fails(*_: object):
    raise ZeroDivisionError("out of luck")


def test_what_cannot_be_halved_runs_op_by_op(recording, monkeypatch):
    monkeypatch.setattr("torchgraph.lower.pipeline.halve", fails)
    graph = scaled(None)
    data = batches(Mlp, 5)
    with pytest.warns(BackendWarning, match="cannot be halved: ZeroDivisionError: out of luck"):
        graph(*data[0])
    with counters.expect(replays=1):
        graph(*data[1])
        graph(*data[2])
    assert graph.report().cuda_graph.endswith("ZeroDivisionError: out of luck")
    graph.config.set_cuda_graph("require")
    graph(*data[3])
    with pytest.raises(CudaGraphRefused, match="out of luck"):
        graph(*data[4])


@pytest.mark.parametrize("verb", ["open", "warm_up"])
def test_a_device_that_does_not_work(recording, monkeypatch, verb):
    monkeypatch.setattr(Recording, verb, fails)
    graph = scaled(None)
    data = batches(Mlp, 5)
    confirm(graph, *data[0])
    with pytest.warns(BackendWarning, match="ZeroDivisionError: out of luck"):
        graph(*data[1])
    graph(*data[2])
    graph.config.set_cuda_graph("require")
    confirm(graph, *data[3])
    with pytest.raises(CudaGraphRefused, match="out of luck"):
        graph(*data[4])


@pytest.mark.parametrize("mode", ["on", True, None])
def test_unknown_modes(mode):
    with pytest.raises(InvalidOption, match="set_cuda_graph takes 'auto', 'require' or 'off'"):
        tg.GraphConfig().set_cuda_graph(mode)


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "2"])
def test_rings_of_no_size(value):
    with pytest.raises(InvalidOption, match="set_outputs_buffer_size takes an int"):
        tg.GraphConfig().set_outputs_buffer_size(value)


def test_a_check_goes_op_by_op(recording):
    model = Mlp().eval()
    graph = tg.train_step(
        model, nn.functional.cross_entropy, optim.AdamW(model.parameters(), lr=0.1)
    )
    data = batches(Mlp, 6)
    for batch in data[:5]:
        graph(*batch)
    with counters.expect(graph_captures=0, graph_replays=0):
        assert graph.check(*data[5]) is None
    with counters.expect(graph_captures=0, graph_replays=1):
        graph(*data[5])
