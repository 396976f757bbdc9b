"""Compiled code is compared with the aten program before its results count; faults are planted."""

import copy
import warnings

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.lower.conftest import Interpretation
from tests.parity.models import ConvNet, Mlp, batches
from torchgraph.errors import BackendWarning, InvalidOption, StepFailed
from torchgraph.lower import job
from torchgraph.replay import confirm

pytestmark = pytest.mark.usefixtures("interpreted")
cross_entropy = nn.functional.cross_entropy

OPTIMIZERS = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01),  # one kernel of ours, outside of the regions
    "NAdam": lambda p: optim.NAdam(p, lr=0.01),  # inside
}


class Training:
    """A model, its graph on a backend, and what some steps of it left."""

    def __init__(self, model, make, backend, configure=None, loss=cross_entropy, **options):
        torch.manual_seed(0)
        self.model = model()
        self.optimizer = make(self.model.parameters())
        self.graph = tg.train_step(self.model, loss, self.optimizer)
        self.graph.config.set_backend(backend, **options)
        if configure is not None:
            configure(self.graph)
        torch.manual_seed(1)

    def run(self, data):
        self.losses = [self.graph(*batch) for batch in data]
        return self

    @property
    def left(self):
        """Losses, parameters, buffers, slots and the generator."""
        slots = [v for s in self.optimizer.state.values() for v in s.values()]
        tensors = [s for s in slots if isinstance(s, torch.Tensor)]
        return [*self.losses, *self.model.state_dict().values(), *tensors, torch.get_rng_state()]

    @property
    def confirmation(self):
        return self.graph.report().confirmation


def trained(model, make, backend, configure=None, steps=6, **options):
    data = batches(model, steps)
    return Training(model, make, backend, configure, **options).run(data)


def assert_same(left, right):
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.fixture
def plant(monkeypatch):
    """Give regions another function: ``change(region)`` returns it."""

    def with_fault(change):
        def finish(self):
            for region in self.regions:
                region.compiled(change(region))

        monkeypatch.setattr(Interpretation, "finish", finish)

    return with_fault


# --- faults ---------------------------------------------------------------------------------------


def added(position, amount=1e-2):
    """One output is off."""

    def change(region):
        def function(*inputs):
            outputs = list(region.gm(*inputs))
            outputs[position] = outputs[position] + amount
            return outputs

        return function

    return change


def swapped(region):
    """Two gradients of one shape change places."""
    metas = [(meta.shape, meta.dtype) for meta in region.outputs]
    pairs = [(i, metas.index(m)) for i, m in enumerate(metas) if metas.index(m) < i and m[0]]
    (first, second) = pairs[0]

    def function(*inputs):
        outputs = list(region.gm(*inputs))
        outputs[first], outputs[second] = outputs[second], outputs[first]
        return outputs

    return function


def rewritten(edit):
    """The graph of the region, one node of it changed by ``edit``."""

    def change(region):
        gm = copy.deepcopy(region.gm)
        any(edit(node) for node in list(gm.graph.nodes) if node.op == "call_function")
        gm.recompile()
        return gm

    return change


def drop_relu(node):
    """The node is gone: who read it reads what it read."""
    if node.target is not torch.ops.aten.relu.default:
        return False
    node.replace_all_uses_with(node.args[0])
    return True


def constant_off_by_one(node):
    """The dimension that a softmax is over."""
    if node.target is not torch.ops.aten._log_softmax.default:
        return False
    node.args = (node.args[0], node.args[1] - 1, *node.args[2:])
    return True


def other_layout(region):
    """A gradient in column order, and nobody puts it right."""
    region._strays = []

    def function(*inputs):
        return [out.t().contiguous().t() if out.ndim == 2 else out for out in region.gm(*inputs)]

    return function


def wrong_buffer(region):
    """A state that the region writes: the running mean."""

    def function(*inputs):
        outputs = region.gm(*inputs)
        for position in region._written:
            if inputs[position].is_floating_point():
                inputs[position].add_(1e-2)
        return outputs

    return function


def failing(region):
    """It has written its states when it fails."""

    def function(*inputs):
        region.gm(*inputs)
        raise RuntimeError("no such kernel")

    return function


def drawing(region):
    """It moves the generator."""

    def function(*inputs):
        torch.rand(1)
        return region.gm(*inputs)

    return function


FAULTS = {
    "first output": added(0),
    "last output": added(-1),
    "swapped": swapped,
    "dropped node": rewritten(drop_relu),
    "constant": rewritten(constant_off_by_one),
    "failing": failing,
    "drawing": drawing,
}


class Twins(Mlp):
    """Two layers of one shape, so that two gradients have one."""

    def __init__(self):
        super().__init__()
        self.between = nn.Linear(8, 8)
        self.again = nn.Linear(8, 8)

    def forward(self, x):
        x = self.again(torch.relu(self.between(torch.relu(self.first(x)))))
        return self.second(self.drop(x))


batches.__globals__["SHAPES"].setdefault(Twins, (5, 6))


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


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_a_gradient_in_another_layout(name, plant):
    expected = trained(Mlp, OPTIMIZERS[name], "aten").left
    plant(other_layout)
    unwatched = trained(Mlp, OPTIMIZERS[name], "auto", off, switch_at=3).left
    harmless = all(map(torch.allclose, unwatched, expected))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = trained(Mlp, OPTIMIZERS[name], "auto", switch_at=3).left
    if harmless:  # the update reads by strides: nothing goes wrong
        assert not caught
        assert all(map(torch.allclose, got, expected))
    else:
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


def later(call):
    """Right until that call of the region."""

    def change(region):
        count = iter(range(1, 100))

        def function(*inputs):
            outputs = list(region.gm(*inputs))
            return [out + (next(count) >= call) for out in outputs[:1]] + outputs[1:]

        return function

    return change


def test_every_nth_call_is_compared(plant):
    plant(later(6))
    watch = lambda graph: graph.config.set_confirm(3)  # noqa: E731
    with pytest.warns(BackendWarning, match="Call 7 ran"):
        got = trained(Mlp, OPTIMIZERS["SGD"], "inductor", watch, steps=9)
    assert got.confirmation.confirmed == 2
    assert got.confirmation.last == 4


def test_the_first_call_alone_is_compared_by_default(plant):
    plant(later(6))
    got = trained(Mlp, OPTIMIZERS["SGD"], "inductor", steps=9).confirmation
    assert (got.confirmed, got.last, got.dropped) == (1, 1, False)


def test_results_do_not_depend_on_what_is_compared():
    results = [
        trained(ConvNet, OPTIMIZERS["AdamW"], "inductor", lambda g, n=n: g.config.set_confirm(n))
        for n in ("off", "first", 1)
    ]
    assert_same(results[0].left, results[1].left)
    assert_same(results[0].left, results[2].left)
    assert results[2].confirmation.confirmed == 6


@pytest.mark.parametrize("calls", ["never", 0, -1, 1.5, True, None])
def test_what_set_confirm_takes(calls):
    graph = Training(Mlp, OPTIMIZERS["SGD"], "aten").graph
    with pytest.raises(InvalidOption, match="set_confirm takes"):
        graph.config.set_confirm(calls)


def test_without_memory_the_step_goes_on(monkeypatch):
    def none_left(*_):
        raise MemoryError

    monkeypatch.setattr(confirm, "copy_of", none_left)
    got = trained(Mlp, OPTIMIZERS["AdamW"], "inductor")
    assert got.confirmation.confirmed == 0
    assert not got.confirmation.dropped
    assert "no memory" in str(got.graph.report())


def test_without_memory_to_look_the_step_goes_on(monkeypatch):
    def none_left(*_):
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
    one.graph(x, y)
    before = copy.deepcopy(one.model.state_dict())
    with pytest.raises(StepFailed):
        one.graph(torch.tensor([0, 5]), y)
    assert_same(one.model.state_dict().values(), before.values())
    one.graph(x, y)
    one.graph(x, y)
    assert one.confirmation.confirmed == 1


# --- no false alarms ------------------------------------------------------------------------------


class Unlooked(nn.Module):
    """Most rows of the table get no gradient; Adam moves by rounding where it is tiny."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.norm(self.table(x)).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(6, 8, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.cells(x)[0][:, -1])


def data_for(model, steps):
    source = torch.Generator().manual_seed(2)
    if model in (Mlp, ConvNet, Twins):
        return batches(model, steps)
    for_model = {
        Unlooked: lambda: torch.randint(50, (5, 7), generator=source),
        Recurrent: lambda: torch.randn(5, 7, 6, generator=source),
    }[model]
    return [(for_model(), torch.randint(4, (5,), generator=source)) for _ in range(steps)]


def rounded(amount):
    """What a compiler does to the last bits: every output is off by a share of itself."""

    def change(region):
        noise = torch.Generator().manual_seed(3)

        def function(*inputs):
            outputs = list(region.gm(*inputs))
            for i, out in enumerate(outputs):
                if out.is_floating_point():
                    factor = torch.rand(out.shape, generator=noise) * 2 - 1
                    outputs[i] = (out + out.abs() * factor * amount).to(out.dtype)
            return outputs

        return function

    return change


SETTINGS = {
    "plain": lambda graph: None,
    "bf16": lambda graph: graph.config.enable_amp(True, dtype=torch.bfloat16),
    "oneflow": lambda graph: graph.config.enable_amp(True, dtype=torch.bfloat16, policy="oneflow"),
    "fast draws": lambda graph: graph.config.set_rng("fast"),
    "clipped": lambda graph: graph.config.set_clip_grad_norm(0.1),
    "checkpointed": lambda graph: graph.config.set_activation_checkpointing("matmuls"),
    "scaled": lambda graph: graph.set_grad_scaler(torch.amp.GradScaler("cpu", init_scale=8.0)),
    "fused": lambda graph: graph.config.allow_fuse_model_update_ops(True),
}


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
        graph.config.set_confirm(1)

    with warnings.catch_warnings():
        warnings.simplefilter("error", BackendWarning)
        one = Training(model, OPTIMIZERS["AdamW"], "inductor", configure)
        one.run(data_for(model, 8))
    assert one.confirmation.confirmed == 8


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_micro_batches_are_followed(name, plant):
    def configure(graph):
        graph.config.set_gradient_accumulation_steps(5)
        graph.config.set_confirm(2)

    got = trained(ConvNet if name != "SGD" else Mlp, OPTIMIZERS[name], "inductor", configure)
    assert got.confirmation.confirmed == 3
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
        assert torch.equal(graph(x), model(x))
        assert graph.report().confirmation.confirmed == 1
        plant(added(0, 1e-3))
        other = Eval(model)
        other.config.set_backend("inductor")
        with pytest.warns(BackendWarning, match="aten"):
            assert torch.equal(other(x), model(x))


def test_a_mutated_input_is_put_back(plant):
    class Count(tg.Graph):
        def build(self, x):
            x.add_(1.0)
            return torch.relu(x) * 2

    plant(added(0))
    graph = Count()
    graph.config.set_backend("inductor")
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
    for x, y in batches(Twins, 3):
        graph(x, y)
    assert graph.report().confirmation.confirmed == 1


# --- CUDA Graphs: a device that records what it is asked stands in for the GPU ---------------------


def test_a_replayed_step_is_confirmed_op_by_op(recording, plant):
    got = trained(Mlp, OPTIMIZERS["AdamW"], "inductor", lambda g: g.config.set_confirm(3), steps=9)
    assert got.confirmation.confirmed == 3
    assert "captured" in got.graph.report().cuda_graph
    expected = trained(Mlp, OPTIMIZERS["AdamW"], "aten").left
    plant(rewritten(drop_relu))
    with pytest.warns(BackendWarning, match="models.py"):
        dropped = trained(Mlp, OPTIMIZERS["AdamW"], "auto", switch_at=3)
    assert_same(dropped.left, expected)


# --- for real -------------------------------------------------------------------------------------


@pytest.mark.skipif(job.cpp_compiler() is None, reason="Inductor needs a C++ compiler")
def test_compiled_code_is_confirmed(monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setenv("TORCHGRAPH_VERIFY", "strict")
    monkeypatch.setenv("TORCHGRAPH_CACHE_DIR", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error", BackendWarning)
        got = trained(ConvNet, OPTIMIZERS["AdamW"], "inductor", lambda g: g.config.set_confirm(2))
    assert got.confirmation.confirmed == 3
