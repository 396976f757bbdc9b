"""The state machine of CUDA Graph replay, on a device that records it."""

import gc
import signal
import weakref
from typing import Any

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests import support
from tests.parity.models import ConvNet, Mlp, batches
from tests.support import confirm
from torchgraph.errors import BackendWarning, CudaGraphRefused
from torchgraph.testing import counters

pytestmark = pytest.mark.usefixtures("without_looks")


def sgd(parameters):
    return optim.SGD(parameters, lr=0.1)


def adamw(parameters):
    return optim.AdamW(parameters, lr=0.01)


def made(make=sgd, model=Mlp, **options: Any):
    """A graph whose program is confirmed: the next call is its first run."""
    torch.manual_seed(0)
    net = model()
    graph = tg.train_step(net, nn.functional.cross_entropy, make(net.parameters()))
    for name, value in options.items():
        getattr(graph.config, name)(value)
    confirm(graph, *batches(model, 1)[0])
    return graph, net


RECORDED = 2
"""Calls of AdamW before its program runs."""


class Eval(tg.Graph):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def build(self, x, y=None):
        return self.function(x) if y is None else self.function(x, y)


def test_the_first_run_warms_up_and_the_second_captures(recording):
    graph, _ = made(adamw)
    states = []
    with counters.expect(captures=0, graph_captures=1, graph_replays=3, replays=4):
        for batch in batches(Mlp, 4):
            graph(*batch)
            states.append(graph.report().cuda_graph)
    (device,) = recording
    once = ["numbers", "replay"]  # AdamW's step counter moves at each call
    assert device.events == ["numbers", "warm-up", "capture", *once, *once, *once]
    assert states == ["warm", "captured", "captured", "captured"]


def test_the_report_times_warm_up_capture_and_first_replay(recording):
    graph, _ = made()
    for batch in batches(Mlp, 3):
        graph(*batch)
    seconds = {stage.name: stage.seconds for stage in graph.report().stages}
    last = ["first run, a warm-up", "capturing a CUDA Graph", "first replay"]
    assert list(seconds)[-3:] == last
    assert min(seconds.values()) > 0


def test_numbers_that_did_not_change_are_not_written(recording):
    graph, _ = made(sgd)
    for batch in batches(Mlp, 4):
        graph(*batch)
    assert recording[0].events.count("numbers") == 1
    for group in graph._runner.live.optimizers[0].param_groups:
        group["lr"] = 0.05
    for batch in batches(Mlp, 2):
        graph(*batch)
    assert recording[0].events.count("numbers") == 2
    assert recording[0].events.count("capture") == 1


def test_each_call_is_one_step(recording):
    graph, net = made(sgd, ConvNet)
    recorded = net.norm.num_batches_tracked.item()
    assert recorded == 2
    for count, batch in enumerate(batches(ConvNet, 4), start=recorded + 1):
        before = net.head.weight.detach().clone()
        graph(*batch)
        assert net.norm.num_batches_tracked.item() == count
        assert not torch.equal(net.head.weight, before)


def test_what_is_written_has_another_version(recording):
    graph, net = made()
    for batch in batches(Mlp, 4):
        version = net.first.weight._version
        graph(*batch)
        assert net.first.weight._version > version


def test_a_state_without_a_version(recording):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count += 1
            return x * self.count

    class Runs(tg.Graph):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def build(self, x):
            return self.model(x)

    with torch.inference_mode():
        graph = Runs(Counts())
        results = [graph(torch.ones(1)).item() for _ in range(6)]
    assert results == [1, 2, 3, 4, 5, 6]  # two are recorded
    assert recording[0].events.count("replay") == 3


def test_results_are_fresh(recording):
    graph = Eval(lambda x: (x + 1, x.sum()))
    confirm(graph, torch.ones(2))
    results = [graph(torch.full((2,), float(i))) for i in range(5)]
    assert [total.item() for _, total in results] == [0, 2, 4, 6, 8]
    assert len({plus.data_ptr() for plus, _ in results}) == 5
    results[-1][0].zero_()
    assert graph(torch.ones(2))[0].tolist() == [2, 2]


@pytest.mark.parametrize("ring", [None, 2])
def test_results_have_the_strides_of_eager(recording, ring):
    def views(x):
        y = x * 2
        return y.t(), y.expand(3, 4, 2), y[:, ::2], y[0], y.sum(), y[:0]

    graph = Eval(views)
    graph.config.set_outputs_buffer_size(ring)
    confirm(graph, torch.ones(4, 2))
    for number in range(4):
        x = torch.arange(8.0).view(4, 2) + number
        for got, expected in zip(graph(x), views(x), strict=True):
            assert torch.equal(got, expected)
            assert got.stride() == expected.stride()


def test_a_ring_of_results(recording):
    graph = Eval(lambda x: x + 1)
    graph.config.set_outputs_buffer_size(3)
    confirm(graph, torch.ones(2))
    results = [graph(torch.full((2,), float(i))) for i in range(7)]
    assert len({result.data_ptr() for result in results}) == 3
    assert [result[0].item() for result in results] == [7, 5, 6, 7, 5, 6, 7]
    assert recording[0].graphs[0].results[0].data_ptr() not in {r.data_ptr() for r in results}


def test_inputs_are_copied_and_not_kept(recording):
    graph = Eval(lambda x, y: x * 2 + y)
    confirm(graph, torch.ones(3), torch.ones(3))
    for number in range(4):
        x, y = torch.full((3,), float(number)), torch.ones(3)
        assert graph(x, y).tolist() == [2 * number + 1] * 3
    kept = weakref.ref(x)
    del x
    gc.collect()
    assert kept() is None


def test_an_input_with_overlapping_elements(recording):
    graph = Eval(lambda x: x * 2)
    for number in range(6):
        x = torch.arange(number, number + 3.0)[:, None].expand(3, 4)
        assert torch.equal(graph(x), x * 2)
    for number in range(6):
        x = torch.arange(number, number + 12.0).view(3, 4).t()[1:]
        assert torch.equal(graph(x), x * 2)


def test_an_input_that_build_writes(recording):
    graph = Eval(lambda x: x.mul_(2) + 1)
    for number in range(6):
        x = torch.full((2,), float(number))
        assert graph(x).tolist() == [2 * number + 1] * 2
        assert x.tolist() == [2 * number] * 2


def test_memory_that_was_replaced_is_captured_again(recording):
    graph, net = made()
    data = batches(Mlp, 8)
    for batch in data[:3]:
        graph(*batch)
    net.first.weight.data = net.first.weight.data.clone()
    for batch in data[3:5]:
        graph(*batch)
    assert recording[0].events[-4:] == ["reset", "capture", "replay", "replay"]
    net.first.weight = nn.Parameter(net.first.weight.detach().clone())
    graph._runner.live.optimizers[0].param_groups[0]["params"][0] = net.first.weight
    with counters.expect(captures=0, graph_captures=1, graph_replays=3):
        for batch in data[5:]:
            before = net.first.weight.detach().clone()
            graph(*batch)
            assert not torch.equal(net.first.weight, before)


def test_a_loaded_checkpoint_is_used(recording):
    graph, _ = made(adamw)
    other, _ = made(adamw, set_cuda_graph="off")
    data = batches(Mlp, 6)
    for batch in data[:3]:
        graph(*batch)
    torch.manual_seed(1)
    other.load_state_dict(graph.state_dict())
    state = torch.get_rng_state()
    expected = [other(*batch) for batch in data[3:]]
    torch.set_rng_state(state)
    graph.load_state_dict(graph.state_dict())
    got = [graph(*batch) for batch in data[3:]]
    torch.testing.assert_close(got, expected)


def test_all_shapes_share_a_device(recording):
    graph, _ = made()
    (x, y), *_ = batches(Mlp, 1)
    confirm(graph, x[:3], y[:3])
    for rows in (5, 3, 5, 3, 3, 5):
        graph(x[:rows], y[:rows])
    (device,) = recording
    assert len(device.graphs) == 2
    assert device.events.count("warm-up") == 2
    assert device.events.count("replay") == 4


def test_an_evicted_program_gives_its_memory_back(recording):
    graph, _ = made(set_cache_size=1)
    (x, y), *_ = batches(Mlp, 1)
    for rows in (5, 5, 3, 3):
        graph(x[:rows], y[:rows])
    assert recording[0].graphs[0].is_reset


def test_close_and_go_on(recording):
    graph, _ = made(adamw)
    data = batches(Mlp, 6)
    for batch in data[:3]:
        graph(*batch)
    graph.close()
    (device,) = recording
    assert device.events[-2:] == ["reset", "release"]
    assert len(support.replays(graph)) == 0
    confirm(graph, *data[3])
    with counters.expect(captures=0, graph_captures=1, graph_replays=2):
        for batch in data[3:]:
            graph(*batch)
    graph.close()
    graph.close()
    assert graph.state_dict()["_train"]["step"] == RECORDED + 3 + 2 + 3


def test_off(recording):
    graph, _ = made(set_cuda_graph="off")
    with counters.expect(graph_captures=0, replays=3):
        for batch in batches(Mlp, 3):
            graph(*batch)
    assert recording == []
    assert graph.report().cuda_graph == "off"


def test_a_capture_that_fails_leaves_the_step_op_by_op(recording):
    graph, net = made(adamw)
    data = batches(Mlp, 4)
    graph(*data[0])
    recording[0].fail_next = True
    with pytest.warns(BackendWarning, match="not permitted when stream is capturing"):
        graph(*data[1])
    for batch in data[2:]:
        graph(*batch)
    assert recording[0].events.count("replay") == 0
    assert graph.report().cuda_graph.startswith("the capture failed: RuntimeError")
    assert graph._runner.live.optimizers[0].state[net.first.weight]["step"].item() == RECORDED + 4


def test_a_capture_that_fails_though_it_is_required(recording):
    graph, net = made(adamw, set_cuda_graph="require")
    data = batches(Mlp, 4)
    graph(*data[0])
    before = net.first.weight.detach().clone()
    recording[0].fail_next = True
    with pytest.raises(CudaGraphRefused, match="not permitted when stream is capturing"):
        graph(*data[1])
    assert torch.equal(net.first.weight, before)
    assert graph._runner.live.optimizers[0].state[net.first.weight]["step"].item() == RECORDED + 1
    graph(*data[2])
    assert graph.report().cuda_graph == "captured"


def test_a_warm_up_that_fails_counts_no_step(recording, monkeypatch):
    graph, net = made(adamw)
    data = batches(Mlp, 3)
    graph(*data[0])
    steps = graph._runner.live.optimizers[0].state[net.first.weight]["step"]
    x, y = data[1]
    confirm(graph, x[:2], y[:2])  # a program that has not run
    assert steps.item() == RECORDED + 1 + 2
    warm_up = type(recording[0]).warm_up

    def fail(self, function, values):
        return function([])  # an op that raises

    monkeypatch.setattr(type(recording[0]), "warm_up", fail)
    graph(x[:2], y[:2])  # eager runs it
    assert steps.item() == RECORDED + 1 + 3
    monkeypatch.setattr(type(recording[0]), "warm_up", warm_up)
    graph(x[:2], y[:2])
    assert steps.item() == RECORDED + 1 + 3 + 1


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_waits_for_the_replay(recording, monkeypatch):
    graph, net = made(adamw)
    data = batches(Mlp, 4)
    for batch in data[:2]:
        graph(*batch)
    captured = recording[0].graphs[0]
    replay = captured.replay

    def interrupted():
        signal.raise_signal(signal.SIGINT)
        replay()

    monkeypatch.setattr(type(captured), "replay", lambda self: interrupted())
    with pytest.raises(KeyboardInterrupt):
        graph(*data[2])
    assert graph._runner.live.optimizers[0].state[net.first.weight]["step"].item() == RECORDED + 3
    monkeypatch.undo()


@pytest.mark.parametrize("steps", [2, 3])
def test_micro_batches(recording, steps):
    data = [(torch.randn(6, 6), torch.randint(0, 3, (6,))) for _ in range(5)]
    got, models = [], []
    for mode in ("require", "off"):
        torch.manual_seed(0)
        net = Mlp()
        graph = tg.train_step(net, nn.functional.cross_entropy, adamw(net.parameters()))
        graph.config.set_cuda_graph(mode)
        graph.config.set_gradient_accumulation_steps(steps)
        confirm(graph, *data[0])
        torch.manual_seed(1)
        with counters.expect(graph_captures=3 if mode == "require" else 0):
            got.append([graph(*batch) for batch in data])
        models.append(net)
    torch.testing.assert_close(got[0], got[1])
    torch.testing.assert_close(*(list(net.parameters()) for net in models))
    (device,) = recording
    assert device.events.count("warm-up") == steps + 1
    assert device.events.count("replay") == 4 * (steps + 1)
    assert graph.report().cuda_graph == "off"


def test_calls_that_are_recorded_are_not_captured(recording):
    """The first makes the momentum, two more are written down and compared."""
    torch.manual_seed(0)
    net = Mlp()
    optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    graph = tg.train_step(net, nn.functional.cross_entropy, optimizer)
    graph.config.set_cuda_graph("require")
    with counters.expect(captures=1, graph_captures=1, graph_replays=2, replays=3):
        for batch in batches(Mlp, 6):
            graph(*batch)
    assert recording[0].events.count("warm-up") == 1
