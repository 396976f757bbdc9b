"""TorchScript: a step with such a module runs in eager, scripted functions are ops."""

import io
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.contract.models import Eval, Function, Train, adam, data, eager, same, snapshot, twins
from torchgraph.errors import EagerWarning, NotSupported
from torchgraph.testing import counters

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 2))


def loaded() -> nn.Module:
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(plain()), file)
    file.seek(0)
    return torch.jit.load(file)


MODELS = {
    "scripted": (lambda: torch.jit.script(plain()), "'model'"),
    "traced": (lambda: torch.jit.trace(plain(), data()[0], check_trace=False), "'model'"),
    "loaded": (loaded, "'model'"),
    "a part": (lambda: nn.Sequential(torch.jit.script(plain()), nn.Linear(2, 1)), "'model.0'"),
    "no state": (
        lambda: nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Dropout(0.5))),
        "'model.1'",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_scripted_module_trains_in_eager(name):
    make, path = MODELS[name]
    (model, optimizer), (twin, other) = twins(make)
    graph = Train(model, optimizer)
    batches = [*data(5), *data(2, rows=3), *data(2)]

    def steps(step, model):
        torch.manual_seed(1)
        for number, batch in enumerate(batches):
            model.train(number != 7)
            yield step(batch)

    with pytest.warns(EagerWarning, match=f"{path} is TorchScript.*nn.Module") as found:
        got = list(steps(graph, model))
    assert len(found) == 1  # of three signatures
    state = snapshot(model, optimizer)
    assert same(got, list(steps(lambda batch: eager(twin, other, batch), twin)))
    assert same(state, snapshot(twin, other))
    with pytest.raises(NotSupported, match=path):
        graph.report()
    assert path.strip("'").rpartition(".")[-1] in str(graph)


@pytest.mark.parametrize("name", ["scripted", "traced"])
def test_a_step_that_raises_says_why_and_leaves_a_scripted_module_as_it_was(name):
    model = MODELS[name][0]()
    optimizer = adam(model)
    graph = Train(model, optimizer)
    with pytest.warns(EagerWarning):
        graph(*data())
    for _ in range(2):
        before = snapshot(model, optimizer)
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            graph(torch.ones(5, 9))
        assert same(before[1:], snapshot(model, optimizer)[1:])
        assert all(parameter.grad is None for parameter in model.parameters())
    graph(*data())


@pytest.mark.parametrize("method", ["forward", "encode"])
def test_a_scripted_module_that_build_meets(method):
    """It is held by nobody: found when it is called, in the middle of a recording."""

    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return self.drop(x)

        @torch.jit.export
        def encode(self, x):
            return self.drop(x) * 2

    stranger = torch.jit.script(Noisy())

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x):
            hidden = torch.rand(2) + self.linear(x)
            out = F.dropout(getattr(stranger, method)(hidden), 0.2)
            return out + torch.from_numpy(hidden.detach().numpy())  # what no recording allows

    torch.manual_seed(0)
    model, twin = Model(), Model()
    twin.load_state_dict(model.state_dict())
    optimizer, other = adam(model), adam(twin)
    graph = Train(model, optimizer)
    torch.manual_seed(1)
    with pytest.warns(EagerWarning, match=rf"Noisy\.{method} \(at .*test_torchscript") as found:
        got = [graph(batch) for batch in data(5)]
    assert len(found) == 1
    state = snapshot(model, optimizer)
    torch.manual_seed(1)
    assert same(got, [eager(twin, other, batch) for batch in data(5)])
    assert same(state, snapshot(twin, other))


def test_modes_of_a_scripted_module_are_seen():
    model = torch.jit.script(nn.Dropout(0.5))
    graph = Eval(model)
    dropped = []
    with pytest.warns(EagerWarning):
        dropped.append(graph(torch.ones(99)))
    for training in (True, True, False, True):
        model.train(training)
        dropped.append(graph(torch.ones(99)))
    assert [bool(out.eq(1).all()) for out in dropped] == [False, False, False, True, False]


@pytest.mark.parametrize("number", [2, 3])
def test_shape_buckets_leave_scripted_modules_alone(number):
    model = torch.jit.script(nn.Linear(4, 2))
    graph = Eval(model)
    graph.config.set_shape_buckets(0, [4])
    batches = data(3, rows=number)
    with pytest.warns(EagerWarning):
        got = [graph(batch) for batch in batches]
    assert same(got, [model(batch) for batch in batches])


def _counted(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.linear(x, weight), [6]).add_(1).sum(0).mul_(2)


def _branches(x: torch.Tensor) -> torch.Tensor:
    if bool(x.sum() > 0):
        return F.dropout(x, 0.3, True) * 2
    return x * 3


@pytest.mark.parametrize("traced", [True, False])
def test_scripted_functions_are_ops_of_the_program(traced):
    """In its second call TorchScript compares constants of its own, as tensors: a listener must
    not take them for the step's."""
    weight = torch.randn(6, 4)

    def step(function, model, x):
        hidden = model(x)
        loss = (function(hidden, weight) if traced else function(hidden)).square().mean()
        loss.backward()
        return loss

    def function():
        return (
            torch.jit.trace(_counted, (data()[0], weight))
            if traced
            else torch.jit.script(_branches)
        )

    torch.manual_seed(0)
    model, twin = nn.Linear(4, 4), nn.Linear(4, 4)
    twin.load_state_dict(model.state_dict())
    optimizer, other = adam(model), adam(twin)
    own, others = function(), function()
    graph = Function(lambda x: step(own, model, x), optimizer, model=model)
    batches = [sign * batch for sign in (1, -1, 1) for batch in data(5)]
    torch.manual_seed(1)
    with counters.expect(captures=1 if traced else 2):
        got = [graph(batch) for batch in batches]
    torch.manual_seed(1)
    for batch, loss in zip(batches, got, strict=True):
        assert torch.equal(loss, step(others, twin, batch))
        other.step()
        other.zero_grad()
    assert same(snapshot(model, optimizer), snapshot(twin, other))


def test_what_cannot_be_put_back_hides_no_error(monkeypatch):
    model = nn.Linear(4, 2)

    def function(x):
        model.bias = None
        raise KeyError("of the user's")

    def put_back(undo):
        raise AttributeError("of torchgraph's")

    monkeypatch.setattr("torchgraph.record.undo.Undo.put_back", put_back)
    graph = Function(function, model=model)
    with pytest.raises(KeyError, match=re.escape("of the user's")) as found:
        graph(*data())
    assert "AttributeError" in str(getattr(found.value, "__notes__", "AttributeError"))
    assert model.bias is not None  # the rest is put back all the same
