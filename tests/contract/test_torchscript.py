"""TorchScript: modules and functions are recorded, what they hold is looked at in each call."""

import io
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.contract.models import (
    Eval,
    Function,
    Train,
    adam,
    beside_eager,
    data,
    in_turn,
    same,
    snapshot,
)
from torchgraph._torch.scripts import optimizes, set_optimize
from torchgraph.errors import EagerWarning
from torchgraph.testing import counters

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:FutureWarning"),  # torch 2.15
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
    "scripted": lambda: torch.jit.script(plain()),
    "traced": lambda: torch.jit.trace(plain(), data()[0], check_trace=False),
    "loaded": loaded,
    "no state": lambda: nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Dropout(0.5))),
    "own": lambda: own_class()(),
}


def own_class():
    """A class of its own for each model: TorchScript's code, and how often it ran, is per class."""

    class Own(nn.Module):
        power: int

        def __init__(self):
            super().__init__()
            self.linear, self.out = nn.Linear(4, 6), nn.Linear(6, 2)
            self.drop = nn.Dropout(0.3)
            self.power, self.factors, self.names = 2, [1.0, 3.0], {"a": 0.5}
            self.shift = torch.ones(6)
            self.register_buffer("mean", torch.zeros(6))

        def forward(self, x):
            hidden = torch.tanh(self.linear(x)) * torch.sigmoid(self.linear(x)) + self.shift
            hidden = F.layer_norm(self.drop(hidden) ** self.power, [6]) * self.factors[1]
            if self.training:
                hidden = hidden * 2
            return self.out(hidden - self.mean) * self.names["a"]

    return lambda: torch.jit.script(Own())


def set_(name, value):
    def change(model, _):
        before = getattr(model, name)
        setattr(model, name, value)
        return lambda: setattr(model, name, before)

    return change


def training(path):
    def change(model, _):
        module = getattr(model, path) if path else model
        module.eval()
        return module.train

    return change


def unoptimized(_model, _):
    before = optimizes()
    set_optimize(False)
    return lambda: set_optimize(before)


def frozen_weight(model, _):
    model.linear.weight.requires_grad_(False)
    return lambda: model.linear.weight.requires_grad_(True)


def other_bias(model, _):
    before, model.out.bias = model.out.bias, nn.Parameter(torch.full((2,), 7.0))
    return lambda: setattr(model.out, "bias", before)


CHANGES = {
    "a number": set_("power", 3),
    "a dict": set_("names", {"a": 0.7}),
    "a tensor": set_("shift", torch.full((6,), 0.5)),
    "a parameter": other_bias,
    "the flag": training(""),
    "the flag of a part": training("drop"),
    "requires_grad": frozen_weight,
    "optimized_execution": unoptimized,
}


@pytest.mark.parametrize("name", MODELS)
def test_a_scripted_module_is_recorded(name):
    done = beside_eager(
        make=MODELS[name],
        batches=[*data(5), *data(4, rows=3), *data(2)],
        before=lambda number, model, _: model.train(number != 7),
    )
    assert done.replayed >= 4
    done.graph.report()


@pytest.mark.parametrize("first", [0, 4])
def test_what_a_scripted_module_holds_is_noticed(first):
    before = in_turn(list(CHANGES.values())[first : first + 4])
    assert beside_eager(make=MODELS["own"], batches=data(28), before=before).replayed >= 14


def test_a_frozen_module():
    model = torch.jit.freeze(torch.jit.script(plain().eval()))
    graph = Eval(model)
    replays = counters.replays
    with torch.no_grad():
        for batch in data(6):
            assert torch.equal(graph(batch), model(batch))
    assert counters.replays > replays


class Counting(nn.Module):
    calls: int

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


class Forking(nn.Module):
    def forward(self, x):
        later = torch.jit.fork(torch.relu, x)
        return x + torch.jit.wait(later)


class Listing(nn.Module):
    def forward(self, x):
        values: list[float] = x[0].tolist()
        return x * values[0]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Counting, "'model' is TorchScript, and .*writes its attribute calls"),
        (Forking, r"ops on other threads \(aten.*\), as torch.jit.fork"),
        (Listing, "'model' is TorchScript, and .*tolist"),
    ],
)
def test_what_no_program_can_follow_runs_in_eager(kind, why):
    model, twin = torch.jit.script(kind()), torch.jit.script(kind())
    graph = Eval(model)
    graph.config.set_fallback("eager")
    with pytest.warns(EagerWarning, match=why) as found:
        got = list(map(graph, data(5)))
    assert len(found) == 1
    assert same(got, list(map(twin, data(5))))
    assert "Calls: 0 by programs, 0 recorded, 5 in eager" in str(graph.report())


def test_a_step_that_raises_leaves_a_scripted_module_as_it_was():
    model = MODELS["scripted"]()
    optimizer = adam(model)
    graph = Train(model, optimizer)
    graph(*data())
    for _ in range(2):
        before = snapshot(model, optimizer)
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            graph(torch.ones(5, 9))
        assert same(before[1:], snapshot(model, optimizer)[1:])
        assert all(parameter.grad is None for parameter in model.parameters())
    graph(*data())


def test_a_scripted_attribute_is_put_back():
    model = torch.jit.script(Counting())

    def build(x):
        model(x)
        raise ValueError("mine")

    graph = Function(build, model=model)
    with pytest.raises(ValueError, match="mine"):
        graph(*data())
    assert model.calls == 0


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

    with pytest.warns(EagerWarning, match=rf"Noisy\.{method} \(at .*test_torchscript") as found:
        beside_eager(make=Model, batches=data(5), fallback="eager")
    assert len(found) == 1


def test_shape_buckets_leave_scripted_modules_alone():
    model = torch.jit.script(nn.Linear(4, 2))
    graph = Eval(model)
    graph.config.set_shape_buckets(0, [4])
    batches = data(3, rows=3)
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

    own, others = function(), function()
    done = beside_eager(
        lambda model, x: step(own, model, x),
        lambda: nn.Linear(4, 4),
        batches=[sign * batch for sign in (1, -1, 1) for batch in data(5)],
        plain=lambda model, x: step(others, model, x),
    )
    # A script's first run is its profiler's: what was made of it serves no call.
    assert done.recorded == (1 if traced else 3)


def test_what_cannot_be_put_back_hides_no_error(monkeypatch):
    model = nn.Linear(4, 2)

    def function(x):
        model.bias = None
        raise KeyError("of the user's")

    def put_back(undo):
        raise AttributeError("of torchgraph's")

    monkeypatch.setattr("torchgraph.record.ops.undo.Undo.put_back", put_back)
    graph = Function(function, model=model)
    with pytest.raises(KeyError, match=re.escape("of the user's")) as found:
        graph(*data())
    assert "AttributeError" in str(getattr(found.value, "__notes__", "AttributeError"))
    assert model.bias is not None  # the rest is put back all the same
