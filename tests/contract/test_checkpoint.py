"""state_dict and load_state_dict: at any time, strict, atomic, bitwise resuming."""

import copy
import io
import json
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from tests.contract.models import Eval, Function, Net, Train, adam, data, made, same, snapshot
from tests.support import thinned_rows
from torchgraph.errors import StateDictMismatch


def graph_of(seed=0, make=adam, schedule=lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5)):
    torch.manual_seed(seed)
    model = Net()
    optimizer = make(model)
    return Train(model, optimizer, schedule(optimizer) if schedule else None)


def saved(graph):
    """Through a file, as safely as torch can load."""
    file = io.BytesIO()
    torch.save(graph.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


RESUMED = [
    (adam, 0),
    (adam, 5),
    (sgd, 1),
]


@pytest.mark.parametrize(("make", "at"), thinned_rows(RESUMED, lambda make, at: at))
def test_resuming_is_bitwise_with_dropout(make, at):
    graph = graph_of(make=make)
    torch.manual_seed(3)
    for x in data(10)[:at]:
        graph(x)
    state = saved(graph)
    expected = [graph(x) for x in data(10)[at:]]
    torch.manual_seed(99)
    torch.rand(17)
    other = graph_of(seed=5, make=make)
    other.load_state_dict(state)

    assert same([other(x) for x in data(10)[at:]], expected)
    assert same(other.state_dict(), graph.state_dict())
    assert other.state_dict()["_train"]["step"] == 10


def test_one_checkpoint_serves_twice():
    """The optimizer must not train on the tensors of the checkpoint."""
    graph = graph_of()
    graph(*data())
    state = saved(graph)
    kept = copy.deepcopy(state)
    other = graph_of(seed=5)
    other.load_state_dict(state)
    for x in data(3):
        other(x)
    assert same(state, kept)


def test_the_format():
    graph = graph_of()
    graph(*data())
    state = graph.state_dict()

    assert list(state) == ["model", "_train"]
    assert list(state["model"]) == list(graph._modules["model"].state_dict())
    train = state["_train"]
    assert set(train) == {"step", "calls", "optimizers", "schedulers", "scaler", "rng"}
    assert train["step"] == 1
    assert json.loads(train["calls"]) == {"args[0]: float32[5, 4]": 1}
    assert train["scaler"] is None
    assert same(train["optimizers"][0], graph._runner.live.optimizers[0].state_dict())
    assert train["schedulers"][0]["last_epoch"] == 1
    assert torch.equal(train["rng"]["cpu"], torch.get_rng_state())
    assert state["model"]["first.weight"].data_ptr() == graph.model.first.weight.data_ptr()


def test_a_module_of_the_graph_loads_into_plain_torch_and_back():
    graph = graph_of()
    graph(*data())
    plain = Net()
    plain.load_state_dict(graph.state_dict()["model"])
    plain.load_state_dict(graph.model.state_dict())  # OneFlow: an error
    optimizer = adam(plain)
    optimizer.load_state_dict(graph.state_dict()["_train"]["optimizers"][0])
    assert same(optimizer.state_dict(), graph._runner.live.optimizers[0].state_dict())
    graph.model.load_state_dict(Net().state_dict())
    graph(*data())


def test_an_eval_graph_needs_no_train_entry():
    model, _ = made()
    graph = Eval(model)
    state = saved(graph)
    other = Eval(Net())
    other.load_state_dict({"model": state["model"]})
    assert same(other.model.state_dict(), model.state_dict())


GONE = object()
TRAIN = ("_train",)
OPTIMIZER = ("_train", "optimizers", 0)
BAD: dict[str, tuple[tuple[Any, ...], Any]] = {
    "module missing": (("model",), GONE),
    "train missing": (TRAIN, GONE),
    "unexpected": (("other",), {}),
    "key missing": (("model", "first.weight"), GONE),
    "key unexpected": (("model", "third"), torch.ones(1)),
    "last key of another shape": (("model", "second.bias"), torch.ones(3)),
    "no tensor": (("model", "second.bias"), 3),
    "module is no dict": (("model",), 3),
    "train is no dict": (TRAIN, 3),
    "step missing": ((*TRAIN, "step"), GONE),
    "rng missing": ((*TRAIN, "rng"), GONE),
    "rng of another size": ((*TRAIN, "rng", "cpu"), torch.zeros(3, dtype=torch.uint8)),
    "rng is no dict": ((*TRAIN, "rng"), None),
    "step is no number": ((*TRAIN, "step"), "many"),
    "optimizers missing": ((*TRAIN, "optimizers"), []),
    "too many optimizers": ((*TRAIN, "optimizers"), [{}, {}]),
    "optimizer is no state": (OPTIMIZER, {}),
    "group missing": ((*OPTIMIZER, "param_groups"), []),
    "parameters missing": ((*OPTIMIZER, "param_groups", 0, "params"), [0, 1]),
    "slot of another shape": ((*OPTIMIZER, "state", 0, "exp_avg"), torch.ones(2)),
    "slot of an unknown parameter": ((*OPTIMIZER, "state", 77), {"exp_avg": torch.ones(1)}),
    "scheduler missing": ((*TRAIN, "schedulers"), []),
    "state of another optimizer": (OPTIMIZER, sgd(Net()).state_dict()),
    "state of another scheduler": (
        (*TRAIN, "schedulers", 0),
        torch.optim.lr_scheduler.ExponentialLR(adam(Net()), 0.5).state_dict(),
    ),
    "scheduler is no dict": ((*TRAIN, "schedulers", 0), 3),
}


def changed(state, path: tuple[Any, ...], value):
    """A copy with another value in that place, or none."""
    state = copy.deepcopy(state)
    found = state
    for key in path[:-1]:
        found = found[key]
    if value is GONE:
        del found[path[-1]]
    else:
        found[path[-1]] = value
    return state


@pytest.fixture(scope="module")
def graphs():
    """One that has stepped, one that has not; a state that is refused leaves both as they are."""
    graph, stepped, source = graph_of(), graph_of(), graph_of(seed=5)
    stepped(*data())
    source(*data())
    return {False: graph, True: stepped}, saved(source)


@pytest.mark.parametrize(
    ("name", "stepped"), thinned_rows(product(BAD, (False, True)), lambda name, stepped: stepped)
)
def test_a_state_that_does_not_fit_is_refused_and_nothing_is_loaded(name, stepped, graphs):
    graph, state = graphs[0][stepped], changed(graphs[1], *BAD[name])
    before = snapshot(graph)

    with pytest.raises(StateDictMismatch):
        graph.load_state_dict(state)

    assert same(snapshot(graph), before)


def test_not_strict_takes_what_fits_by_name():
    graph = graph_of()
    graph(*data())
    new = graph_of(seed=5)
    weights = saved(graph)["model"]
    del weights["second.bias"]
    kept = new.model.second.bias.detach().clone()
    new.load_state_dict({"model": {**weights, "third": torch.ones(1)}, "x": {}}, strict=False)

    assert torch.equal(new.model.first.weight, graph.model.first.weight)
    assert torch.equal(new.model.second.bias, kept)
    with pytest.raises(StateDictMismatch):
        new.load_state_dict([1])
    with pytest.raises(StateDictMismatch):  # but never a wrong shape
        new.load_state_dict({"model": {"second.bias": torch.ones(9)}}, strict=False)


def test_the_dtype_and_device_stay_those_of_the_graph():
    graph = graph_of()
    graph(*data())
    state = saved(graph)
    state["model"] = {key: value.double() for key, value in state["model"].items()}
    other = graph_of(seed=5)
    other.load_state_dict(state)
    assert other.model.first.weight.dtype is torch.float32
    other(*data())


def test_several_optimizers_and_modules():
    def fresh(seed):
        torch.manual_seed(seed)
        one, two = nn.Linear(4, 4), nn.Linear(4, 2)

        def function(x):
            loss = two(torch.tanh(one(x))).square().mean()
            loss.backward()
            return loss

        return Function(
            function, adam(one), torch.optim.SGD(two.parameters(), lr=0.1, momentum=0.9),
            one=one, two=two,
        )  # fmt: skip

    graph = fresh(0)
    for x in data(3):
        graph(x)
    state = saved(graph)
    assert list(state) == ["one", "two", "_train"]
    expected = [graph(x) for x in data(3)]
    other = fresh(9)
    other.load_state_dict(state)
    assert same([other(x) for x in data(3)], expected)


def test_the_count_of_calls():
    graph, other = graph_of(), graph_of()
    assert graph.state_dict()["_train"]["step"] == 0
    for x in data(3):
        graph(x)
    with pytest.raises(RuntimeError):  # not counted
        graph(torch.ones(3, 9))
    other.load_state_dict(saved(graph))
    other(*data())
    assert other.state_dict()["_train"]["step"] == 4


def test_loading_resets_what_the_graph_knows_of_its_schedulers():
    graph = graph_of()
    for x in data(3):
        graph(x)
    state = saved(graph)
    graph(*data())
    graph.load_state_dict(state)
    graph(*data())  # no SchedulerSteppedTwice
    assert graph.last_lr == [0.05 * 0.25]
