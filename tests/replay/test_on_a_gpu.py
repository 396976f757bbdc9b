"""CUDA Graphs on a GPU, by `make gpu-second`. The files beside this one test them on the CPU."""

import copy
import gc
from typing import Any

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.parity.models import SHAPES, Mlp
from tests.support import confirm
from torchgraph.errors import BackendWarning, CudaGraphRefused
from torchgraph.replay.cuda.device import Cuda
from torchgraph.testing import counters

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

REPLAYED = 5
"""Calls until a CUDA Graph serves: two or three are recorded, one warms up, one captures."""

OPTIMIZERS = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD, momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01),
    "AdamW, lr of the CPU": lambda p: optim.AdamW(p, lr=torch.tensor(0.01)),
    "AdamW, capturable": lambda p: optim.AdamW(p, lr=0.01, capturable=True),
    "AdamW, capturable foreach": lambda p: optim.AdamW(p, lr=0.01, capturable=True, foreach=True),
    "NAdam": lambda p: optim.NAdam(p, lr=0.01),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01),
    "Rprop": lambda p: optim.Rprop(p, lr=0.01),
}


def batches(count, rows=5):
    made = torch.Generator().manual_seed(7)
    return [
        (
            torch.randn(rows, *SHAPES[Mlp][1:], generator=made).cuda(),
            torch.randint(0, 3, (rows,), generator=made).cuda(),
        )
        for _ in range(count)
    ]


def trained(mode, make=OPTIMIZERS["AdamW"], configure=lambda config: None):
    torch.manual_seed(0)
    model = Mlp().cuda()
    optimizer = make(model.parameters())
    scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    graph = tg.train_step(model, nn.functional.cross_entropy, optimizer, scheduler)
    graph.config.set_backend("aten")
    graph.config.set_cuda_graph(mode)
    configure(graph.config)
    torch.cuda.manual_seed(5)
    return graph, model


def replayed(configure=lambda config: None):
    """A graph with a captured step, and its model."""
    graph, model = trained("require", configure=configure)
    for batch in batches(REPLAYED):
        graph(*batch)
    assert graph.report().cuda_graph == "captured"
    return graph, model


def both(steps=REPLAYED + 4, rows=5, **options: Any):
    """Losses and parameters with a CUDA Graph, and op by op."""
    found = []
    for mode in ("require", "off"):
        graph, model = trained(mode, **options)
        losses = [graph(*batch) for batch in batches(steps, rows)]
        assert graph.report().cuda_graph.startswith("captured" if mode == "require" else "off")
        found.append((losses, list(model.parameters())))
    return found


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_replayed_step_trains_as_one_op_by_op(name):
    with counters.expect(graph_captures=1):
        got, expected = both(make=OPTIMIZERS[name])
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("verb", ["allow_fuse_model_update_ops", "enable_multi_tensor_update"])
def test_fused_updates(verb):
    got, expected = both(configure=lambda config: getattr(config, verb)())
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_micro_batches():
    got, expected = both(rows=6, configure=lambda c: c.set_gradient_accumulation_steps(3))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_inductor():
    def configure(config):
        config.set_backend("inductor")

    got, expected = both(configure=configure)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_dropout_draws_what_eager_draws():
    class Drop(tg.Graph):
        def build(self, x):
            return nn.functional.dropout(x, 0.5), torch.rand_like(x)

    graph = Drop()
    graph.config.set_backend("aten")
    graph.config.set_cuda_graph("require")
    x = torch.ones(1000, device="cuda")
    torch.cuda.manual_seed(3)
    expected = [(nn.functional.dropout(x, 0.5), torch.rand_like(x)) for _ in range(REPLAYED + 1)]
    torch.cuda.manual_seed(3)
    for dropped, drawn in expected:
        got = graph(x)
        assert torch.equal(got[0], dropped)
        assert torch.equal(got[1], drawn)
    torch.cuda.manual_seed(3)
    assert torch.equal(graph(x)[0], expected[0][0])


def test_results_are_fresh_and_a_ring_takes_turns():
    for size in (None, 2):
        graph, _ = replayed(lambda c, n=size: c.set_outputs_buffer_size(n))
        losses = [graph(*batch) for batch in batches(6)]
        assert len({loss.data_ptr() for loss in losses}) == (size or 6)


def test_memory_that_was_replaced_is_captured_again():
    graph, model = replayed()
    model.first.weight.data = model.first.weight.data.clone()
    with counters.expect(captures=0, graph_captures=1):
        for batch in batches(4):
            before = model.first.weight.detach().clone()
            graph(*batch)
            assert not torch.equal(model.first.weight, before)


def test_another_stream():
    got, expected = both()
    graph, model = trained("require")
    losses = []
    for number, batch in enumerate(batches(len(got[0]))):
        stream = torch.cuda.Stream() if number % 2 else torch.cuda.current_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            losses.append(graph(*batch))
    torch.cuda.synchronize()
    torch.testing.assert_close((losses, list(model.parameters())), got)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_close_gives_the_memory_back():
    def used():
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    trained("require")[0](*batches(1)[0])  # what a first use of the GPU takes and keeps
    data = batches(REPLAYED + 1, rows=4096)
    sizes = []
    for _ in range(3):
        graph, model = trained("require")
        for batch in data:
            graph(*batch)
        graph.close()
        del graph, model
        sizes.append(used())
    assert sizes[0] == sizes[1] == sizes[2]


def test_shapes_share_a_pool():
    graph, _ = trained("require")
    for rows in (5, 3) * (REPLAYED + 1):
        graph(*batches(1, rows)[0])
    assert len(graph._runner.cache.graphs._devices) == 1


def test_a_capture_that_fails_leaves_a_gpu_that_works(monkeypatch):
    graph, _ = trained("auto")
    data = batches(REPLAYED + 1)
    confirm(graph, *data[0])
    graph(*data[0])
    capture = Cuda.capture

    def waits(self, parts, values):
        def waiting(given):
            return ((yield from parts(given))[0].item(),)

        return capture(self, waiting, values)

    with monkeypatch.context() as patch:
        patch.setattr(Cuda, "capture", waits)
        with pytest.warns(BackendWarning, match="the capture failed"):
            graph(*data[1])
    for batch in data[2:]:
        assert graph(*batch).isfinite()
    graph.close()
    with counters.expect(graph_captures=1):
        for batch in data:
            assert graph(*batch).isfinite()


def test_other_programs_are_captured_after_a_capture_that_failed(monkeypatch):
    graph, _ = trained("auto")
    small, large, other = (batches(REPLAYED + 1, rows) for rows in (3, 5, 4))
    for batch in small:
        graph(*batch)
    confirm(graph, *large[0])
    graph(*large[0])
    capture = Cuda.capture

    def waits(self, parts, values):
        def waiting(given):
            return ((yield from parts(given))[0].item(),)

        return capture(self, waiting, values)

    with monkeypatch.context() as patch:
        patch.setattr(Cuda, "capture", waits)
        with pytest.warns(BackendWarning, match="the capture failed"):
            graph(*large[1])
    torch.rand(3, device="cuda")
    with counters.expect(captures=1, graph_captures=1):
        for batch in (*other, *small, *large):
            assert graph(*batch).isfinite()


class Branches(tg.Graph):
    """Python goes one of two ways by a value of the batch, behind draws and a batch norm."""

    def __init__(self, mode):
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(
            *(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2))
        ).cuda()
        self.add_optimizer(optim.AdamW(self.model.parameters(), lr=0.01))
        self.config.set_backend("aten")
        self.config.set_cuda_graph(mode)

    def build(self, x):
        hidden = self.model(x)
        loss = hidden.square().mean() if (x > 0).any() else hidden.mean()
        loss.backward()
        return loss


@pytest.mark.parametrize("period", [1, 3])
def test_a_value_that_python_reads(period):
    """Each variant is captured in two parts; a value that moved leaves nothing behind."""
    ways = [torch.ones(6, 4, device="cuda"), -torch.ones(6, 4, device="cuda")]
    data = [ways[number // period % 2] * (1 + number) for number in range(30)]
    found = []
    for mode in ("require", "off"):
        graph = Branches(mode)
        torch.cuda.manual_seed(5)
        losses = [graph(x) for x in data]
        found.append((losses, list(graph.model.state_dict().values())))
        state = "captured, 2 for a step" if mode == "require" else "off"
        assert graph.report().cuda_graph == state
        found[-1][1].append(torch.cuda.get_rng_state())
    (losses, left), (expected, right) = found
    assert all(map(torch.equal, losses, expected))
    assert all(map(torch.equal, left, right))


def as_eager(model, loss_of, inputs, mode="require"):
    """Losses, parameters and the generator's state after steps of a Graph, and of eager."""
    found = []
    for graphed in (True, False):
        own = copy.deepcopy(model).cuda()
        optimizer = optim.SGD(own.parameters(), lr=0.1)

        def train(x, own=own, optimizer=optimizer):
            optimizer.zero_grad()
            loss = loss_of(own, x)
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = tg.step(train) if graphed else train
        if graphed:
            step.config.set_backend("aten")
            step.config.set_cuda_graph(mode)
        torch.cuda.manual_seed(5)
        losses = [step(x) for x in inputs]
        if graphed:
            assert step.report().cuda_graph.startswith("captured")
        found.append((losses, list(own.parameters()), torch.cuda.get_rng_state()))
    return found


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"bidirectional": True, "num_layers": 2}, {"bias": False}, {"flattens": True}],
    ids=["one", "bidirectional", "no bias", "flattens"],
)
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_layers_of_cudnn(kind, options, half):
    """Their weights are parts of one buffer, and what they keep has a size of cuDNN's."""
    options = dict(options)
    flattens = options.pop("flattens", False)
    cells = getattr(nn, kind)(8, 16, batch_first=True, **options)

    def loss_of(own, x):
        if flattens:
            own.flatten_parameters()
        with torch.autocast("cuda", torch.float16, enabled=half):
            return own(x)[0].float().square().mean()

    inputs = [torch.randn(4, 5, 8, device="cuda") for _ in range(REPLAYED + 3)]
    got, expected = as_eager(cells, loss_of, inputs)
    torch.testing.assert_close(got, expected, rtol=1e-3 if half else 1e-4, atol=1e-5)


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_in_float32(dropout, looks):
    """It gives its seed on the CPU, but in a capture, and between the parts of one, on the GPU."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=dropout, batch_first=True)

    def loss_of(own, x):
        found = own(x)
        loss = found.square().mean()
        return loss * 2 if looks and bool((loss > 0).item()) else loss

    inputs = [torch.randn(2, 16, 32, device="cuda") for _ in range(REPLAYED + 3)]
    got, expected = as_eager(layer, loss_of, inputs)
    assert torch.equal(got[2], expected[2])
    torch.testing.assert_close(got[:2], expected[:2], rtol=1e-4, atol=1e-5)


def test_a_constant_of_the_cpu_moves():
    class Adds(tg.Graph):
        def build(self, x):
            return x + torch.tensor([1.0, 2.0]).to(x.device) * torch.tensor(3.0)

    graph = Adds()
    graph.config.set_cuda_graph("require")
    for number in range(REPLAYED):
        assert graph(torch.full((2,), number, device="cuda")).tolist() == [3 + number, 6 + number]
    assert graph.report().cuda_graph == "captured"


def test_what_is_refused_names_the_line():
    class Copies(tg.Graph):
        def build(self, x, y):
            return x + y.to(x.device)  # HERE

    graph = Copies()
    graph.config.set_cuda_graph("require")
    arguments = torch.ones(2, device="cuda"), torch.ones(2)
    assert graph(*arguments).tolist() == [2, 2]  # in eager: what is wrong is known after it
    with pytest.raises(CudaGraphRefused, match=r"copies a tensor from the CPU(?s:.*)HERE"):
        graph(*arguments)
    graph.config.set_cuda_graph("auto")
    for _ in range(REPLAYED):
        assert graph(*arguments).tolist() == [2, 2]
    assert graph.report().cuda_graph == "refused"


def test_a_thousand_steps_hold_no_more_memory():
    graph, _ = replayed()
    data = batches(4)
    for number in range(20):
        graph(*data[number % 4])
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for number in range(1000):
        graph(*data[number % 4])
    torch.cuda.synchronize()
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before
