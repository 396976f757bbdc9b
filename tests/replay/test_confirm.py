"""Compiled code is compared with the aten program before its results count; faults are planted."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.lower.conftest import Interpretation
from tests.parity.models import ConvNet, Mlp, batches
from tests.replay.confirming import (
    OPTIMIZERS,
    SETTINGS,
    Recurrent,
    Training,
    Twins,
    Unlooked,
    added,
    assert_same,
    constant_off_by_one,
    cross_entropy,
    data_for,
    drawing,
    drop_relu,
    failing,
    later,
    other_layout,
    rewritten,
    rounded,
    swapped,
    trained,
    wrong_buffer,
)
from tests.support import confirm as settle_in_eager, settle
from torchgraph.errors import BackendWarning, ConfirmWarning, InvalidOption
from torchgraph.ir.program import Program
from torchgraph.lower import Target
from torchgraph.lower.inductor import job
from torchgraph.replay.cuda.graphs import CudaGraphs
from torchgraph.verify import audit as confirm

pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.fixture
def plant(monkeypatch):
    """Give regions another function: ``change(region)`` returns it."""

    def with_fault(change):
        def finish(self, limit=None, goes_on=None):
            for region in self.regions:
                region.compiled(change(region))

        monkeypatch.setattr(Interpretation, "finish", finish)

    return with_fault


FAULTS = {
    "first output": added(0),
    "last output": added(-1),
    "swapped": swapped,
    "dropped node": rewritten(drop_relu),
    "constant": rewritten(constant_off_by_one),
    "failing": failing,
    "drawing": drawing,
}


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_never_committed(fault, name, plant):
    expected = trained(Twins, OPTIMIZERS[name], "aten").left
    plant(FAULTS[fault])
    with pytest.warns(BackendWarning, match="goes on with the aten backend") as caught:
        got = trained(Twins, OPTIMIZERS[name], "auto", switch_at=3)
    assert len(caught) == 1
    assert_same(got.left, expected)
    assert got.confirmation.dropped
    assert got.confirmation.confirmed == 0
    assert "dropped at call" in str(got.graph.report())


@pytest.mark.parametrize("fault", [wrong_buffer, failing, rewritten(drop_relu)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_that_a_region_writes_are_put_back(fault, name, plant):
    expected = trained(ConvNet, OPTIMIZERS[name], "aten").left
    plant(fault)
    with pytest.warns(BackendWarning, match="aten backend"):
        got = trained(ConvNet, OPTIMIZERS[name], "auto", switch_at=2).left
    assert_same(got, expected)


def reads_memory_in_order(update):
    """A kernel that never asks for strides."""

    def in_order(value):
        if isinstance(value, torch.Tensor):
            return value.as_strided(value.shape, torch.empty(value.shape).stride())
        return list(map(in_order, value)) if isinstance(value, (list, tuple)) else value

    return lambda *args, **kwargs: update(*map(in_order, args), **kwargs)


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_a_gradient_in_another_layout(name, plant, monkeypatch):
    """Its values are right, and an update that reads memory in order makes nonsense of them."""
    original = CudaGraphs.lower

    def lowered(graphs: CudaGraphs, program: Program, name: str, target: Target):
        code = original(graphs, program, name, target)
        if not target.compiled:
            return code
        names = code.executable.function.__globals__
        kernels = {n: f for n, f in names.items() if callable(f) and "update" in n}
        assert kernels, list(names)
        names.update((n, reads_memory_in_order(f)) for n, f in kernels.items())
        return code

    expected = trained(Mlp, OPTIMIZERS[name], "aten").left
    plant(other_layout)
    monkeypatch.setattr(CudaGraphs, "lower", lowered)
    unwatched = trained(Mlp, OPTIMIZERS[name], "auto", off, switch_at=3).left
    assert not all(map(torch.allclose, unwatched, expected))
    with pytest.warns(BackendWarning, match="model.first.weight computed by") as caught:
        got = trained(Mlp, OPTIMIZERS[name], "auto", switch_at=3).left
    assert len(caught) == 1
    assert_same(got, expected)


def off(graph):
    graph.config.set_confirm("off")


def test_the_node_and_the_line_are_named(plant):
    plant(rewritten(drop_relu))
    with pytest.warns(BackendWarning) as caught:
        trained(Mlp, OPTIMIZERS["AdamW"], "inductor")
    message = str(caught[0].message)
    assert "differs by" in message
    assert "models.py" in message  # the user's line
    assert "where rounding gives" in message


def test_without_confirmation_the_fault_stays(plant):
    """The faults are faults: switched off, they change the numbers."""
    expected = trained(Mlp, OPTIMIZERS["SGD"], "aten").left
    plant(rewritten(drop_relu))
    got = trained(Mlp, OPTIMIZERS["SGD"], "auto", off, switch_at=3)
    assert not all(map(torch.equal, got.left, expected))
    assert "set_confirm('off')" in str(got.graph.report())


# --- audits ---------------------------------------------------------------------------------------


def test_a_look_finds_what_is_wrong_later(plant):
    """The first call confirms; the fault comes with the fourth, a look is every third."""
    plant(later(4))

    def watch(graph):
        graph.config.set_look_again(3)

    with pytest.warns(ConfirmWarning, match="(?s)Compiled code.*models.py.*last 2 calls") as caught:
        got = trained(Mlp, OPTIMIZERS["SGD"], "inductor", watch, steps=9)
    assert len(caught) == 1
    assert got.confirmation.dropped
    assert (got.confirmation.confirmed, got.graph.report().calls.looked) == (2, 3)


def test_what_noise_explained_once_is_not_asked_again(plant, monkeypatch):
    """Runs with noise cost several steps each: later looks go by the bounds of the first ones."""
    plant(rounded(1e-6))
    runs = []
    monkeypatch.setattr(confirm, "_shake", lambda *a, real=confirm._shake: runs.append(real(*a)))
    counts = []

    def watch(graph):
        graph.config.set_look_again(2)

    for steps in (6, 18):
        runs.clear()
        got = trained(ConvNet, OPTIMIZERS["AdamW"], "inductor", watch, steps=steps)
        assert not got.confirmation.dropped
        counts.append((got.confirmation.confirmed, len(runs)))
    (few, first), (many, all_of_them) = counts
    assert first > 0
    assert many > few + 3
    assert all_of_them < first + (many - few), "fewer than a run with noise for each further look"


def test_the_first_call_alone_is_compared_without_looks(plant):
    plant(later(6))
    got = trained(Mlp, OPTIMIZERS["SGD"], "inductor", steps=9).confirmation
    assert (got.confirmed, got.last, got.dropped) == (1, 1, False)


def test_results_do_not_depend_on_the_first_comparison():
    results = [
        trained(ConvNet, OPTIMIZERS["AdamW"], "inductor", lambda g, n=n: g.config.set_confirm(n))
        for n in ("off", "first")
    ]
    assert_same(results[0].left, results[1].left)
    assert (results[0].confirmation.confirmed, results[1].confirmation.confirmed) == (0, 1)


@pytest.mark.parametrize("mode", ["never", 0, -1, 1.5, True, None])
def test_what_set_confirm_takes(mode):
    with pytest.raises(InvalidOption, match="set_confirm takes"):
        tg.GraphConfig().set_confirm(mode)


def test_without_memory_the_step_goes_on(monkeypatch):
    def none_left(*_: Any, **__: Any):
        raise MemoryError

    monkeypatch.setattr(confirm, "copy_of", none_left)
    got = trained(Mlp, OPTIMIZERS["AdamW"], "inductor")
    assert got.confirmation.confirmed == 0
    assert not got.confirmation.dropped
    assert "no memory" in str(got.graph.report())


def test_without_memory_to_look_the_step_goes_on(monkeypatch):
    def none_left(*_: Any, **__: Any):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")

    monkeypatch.setattr(confirm.Reference, "run", none_left)
    watched = trained(Mlp, OPTIMIZERS["AdamW"], "inductor")
    assert "no memory" in watched.confirmation.note
    monkeypatch.undo()


def test_a_step_that_cannot_be_done_is_not_the_compilers_fault():
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 3)

        def forward(self, x):
            return self.table(x)

    one = Training(Table, OPTIMIZERS["SGD"], "inductor")
    x, y = torch.tensor([0, 4]), torch.tensor([1, 2])
    settle(one.graph, x, y)
    before = copy.deepcopy(one.model.state_dict())
    with pytest.raises(IndexError, match="out of range"):
        one.graph(torch.tensor([0, 5]), y)
    assert_same(one.model.state_dict().values(), before.values())
    one.graph(x, y)
    one.graph(x, y)
    assert one.confirmation.confirmed == 1


# --- no false alarms ------------------------------------------------------------------------------


MODELS = [Mlp, ConvNet, Unlooked, Recurrent]
QUICK = {
    (ConvNet, "plain"),
    (ConvNet, "bf16"),
    (Unlooked, "plain"),
    (Unlooked, "scaled"),
    (Recurrent, "plain"),
    (Mlp, "plain"),
    (Mlp, "fast draws"),
}
# oneDNN has no LSTM in bfloat16 for every processor, in eager neither.
COMBINED = [
    pytest.param(m, s, id=f"{m.__name__}-{s}", marks=[] if (m, s) in QUICK else pytest.mark.slow)
    for m in MODELS
    for s in SETTINGS
    if (m, s) != (Recurrent, "bf16")
]


@pytest.mark.parametrize(("model", "setting"), COMBINED)
def test_rounding_is_no_fault(model, setting, plant):
    plant(rounded(1e-6))

    def configure(graph):
        SETTINGS[setting](graph)
        graph.config.set_look_again(1)

    with warnings.catch_warnings():
        warnings.simplefilter("error", BackendWarning)
        one = Training(model, OPTIMIZERS["AdamW"], "inductor", configure)
        one.run(data_for(model, 8))
    looked = 0 if setting == "oneflow" else 7  # eager makes none of OneFlow's casts
    assert one.confirmation.confirmed == 1 + looked
    assert one.graph.report().calls.looked == looked


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_micro_batches_are_followed(name, plant):
    def configure(graph):
        graph.config.set_gradient_accumulation_steps(5)
        graph.config.set_look_again(2)

    got = trained(ConvNet if name != "SGD" else Mlp, OPTIMIZERS[name], "inductor", configure)
    assert got.confirmation.confirmed == 4  # the first, and three looks
    expected = trained(Mlp, OPTIMIZERS[name], "aten", configure).left
    plant(rewritten(drop_relu))
    with pytest.warns(BackendWarning, match="models.py"):
        got = trained(Mlp, OPTIMIZERS[name], "auto", configure, switch_at=2)
    assert_same(got.left, expected)


def test_a_skipped_step_confirms_nothing_yet(plant):
    """The first compiled step overflows; the next that does not is compared too."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    one = Training(Mlp, OPTIMIZERS["SGD"], "inductor", lambda graph: graph.set_grad_scaler(scaler))
    (x, y), *rest = batches(Mlp, 4)
    settle_in_eager(one.graph, x, y)
    one.run([(x * 1e30, y)])
    assert one.confirmation.confirmed == 0
    plant_later = copy.deepcopy(one.model.state_dict())
    one.run(rest)
    assert one.confirmation.confirmed == 1
    assert one.confirmation.last == 2
    assert not all(map(torch.equal, plant_later.values(), one.model.state_dict().values()))


def test_an_evaluation_graph_and_its_fault(plant):
    class Eval(tg.Graph):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def build(self, x):
            return self.model(x)

    torch.manual_seed(0)
    model = Mlp().eval()
    x = batches(Mlp, 1)[0][0]
    graph = Eval(model)
    graph.config.set_backend("inductor")
    with torch.no_grad():
        assert torch.equal(settle(graph, x), model(x))
        assert graph.report().confirmation.confirmed == 1
        plant(added(0, 1e-3))
        other = Eval(model)
        other.config.set_backend("inductor")
        with pytest.warns(BackendWarning, match="aten"):
            assert torch.equal(settle(other, x), model(x))


def test_a_mutated_input_is_put_back(plant):
    class Count(tg.Graph):
        def build(self, x):
            x.add_(1.0)
            return torch.relu(x) * 2

    plant(added(0))
    graph = Count()
    graph.config.set_backend("inductor")
    settle_in_eager(graph, torch.randn(4))
    x = torch.randn(4)
    expected = x + 1
    with pytest.warns(BackendWarning, match="aten"):
        out = graph(x)
    assert torch.equal(x, expected)
    assert torch.equal(out, torch.relu(expected) * 2)


def test_buckets_are_confirmed(plant):
    def rows(model, x, y, mask):
        losses = cross_entropy(model(x), y, reduction="none") * mask
        return losses.sum() / mask.sum()

    class Steps(tg.Graph):
        def __init__(self, model, optimizer):
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)
            self.config.set_shape_buckets(0, [8], mask="mask")
            self.config.set_backend("inductor")

        def build(self, x, y, mask=None):
            loss = rows(self.model, x, y, mask)
            loss.backward()
            return loss

    model = Twins().eval()
    graph = Steps(model, optim.SGD(model.parameters(), lr=0.1))
    for x, y in batches(Twins, 5):
        graph(x, y)
    assert graph.report().confirmation.confirmed == 1 + graph.report().calls.looked


# --- CUDA Graphs: a device that records what it is asked stands in for the GPU --------------------


def test_a_replayed_step_is_confirmed_op_by_op(recording, plant):
    got = trained(
        Mlp, OPTIMIZERS["AdamW"], "inductor", lambda g: g.config.set_look_again(3), steps=9
    )
    assert got.confirmation.confirmed == 4  # the first, and three looks
    assert "captured" in got.graph.report().cuda_graph
    expected = trained(Mlp, OPTIMIZERS["AdamW"], "aten").left
    plant(rewritten(drop_relu))
    with pytest.warns(BackendWarning, match="models.py"):
        dropped = trained(Mlp, OPTIMIZERS["AdamW"], "auto", switch_at=3)
    assert_same(dropped.left, expected)


# --- for real -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(job.cpp_compiler() is None, reason="Inductor needs a C++ compiler")
def test_compiled_code_is_confirmed(monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setenv("TORCHGRAPH_VERIFY", "strict")
    monkeypatch.setenv("TORCHGRAPH_CACHE_DIR", str(tmp_path))
    got = trained(ConvNet, OPTIMIZERS["AdamW"], "inductor", lambda g: g.config.set_look_again(2))
    assert got.confirmation.confirmed == 4  # the first, and three looks
