"""state_dict and load_state_dict: at any time, strict, atomic, bitwise resuming."""

import copy
import io
import json
from typing import Any

import pytest
import torch
from torch import nn

from tests.contract.models import Eval, Function, Net, Train, adam, data, made, same, snapshot
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
    (lambda m: torch.optim.RAdam(m.parameters(), lr=0.05), 5),
]


@pytest.mark.parametrize(("make", "at"), RESUMED)
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


def test_loading_back_into_the_same_graph_after_more_steps():
    graph = graph_of()
    torch.manual_seed(3)
    for x in data(3):
        graph(x)
    state = saved(graph)
    expected = [graph(x) for x in data(4)]
    graph.load_state_dict(state)
    assert same([graph(x) for x in data(4)], expected)


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
    assert same(train["optimizers"][0], graph._runner.step.optimizers[0].state_dict())
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
    assert same(optimizer.state_dict(), graph._runner.step.optimizers[0].state_dict())
    graph.model.load_state_dict(Net().state_dict())
    graph(*data())


def test_an_eval_graph_needs_no_train_entry():
    model, _ = made()
    graph = Eval(model)
    state = saved(graph)
    other = Eval(Net())
    other.load_state_dict({"model": state["model"]})
    assert same(other.model.state_dict(), model.state_dict())


def without(state, *path: Any):
    state = copy.deepcopy(state)
    found = state
    for key in path[:-1]:
        found = found[key]
    del found[path[-1]]
    return state


def replaced(state, value, *path: Any):
    state = copy.deepcopy(state)
    found = state
    for key in path[:-1]:
        found = found[key]
    found[path[-1]] = value
    return state


SLOT = ("_train", "optimizers", 0, "state", 0, "exp_avg")
BAD = {
    "no dict": lambda s: [1],
    "module missing": lambda s: without(s, "model"),
    "train missing": lambda s: without(s, "_train"),
    "unexpected": lambda s: {**s, "other": {}},
    "key missing": lambda s: without(s, "model", "first.weight"),
    "key unexpected": lambda s: replaced(s, torch.ones(1), "model", "third"),
    "last key of another shape": lambda s: replaced(s, torch.ones(3), "model", "second.bias"),
    "no tensor": lambda s: replaced(s, 3, "model", "second.bias"),
    "module is no dict": lambda s: replaced(s, 3, "model"),
    "train is no dict": lambda s: replaced(s, 3, "_train"),
    "step missing": lambda s: without(s, "_train", "step"),
    "rng missing": lambda s: without(s, "_train", "rng"),
    "rng of another size": lambda s: replaced(
        s, torch.zeros(3, dtype=torch.uint8), "_train", "rng", "cpu"
    ),
    "rng is no dict": lambda s: replaced(s, None, "_train", "rng"),
    "step is no number": lambda s: replaced(s, "many", "_train", "step"),
    "optimizers missing": lambda s: replaced(s, [], "_train", "optimizers"),
    "too many optimizers": lambda s: replaced(
        s, s["_train"]["optimizers"] * 2, "_train", "optimizers"
    ),
    "optimizer is no state": lambda s: replaced(s, {}, "_train", "optimizers", 0),
    "group missing": lambda s: replaced(s, [], "_train", "optimizers", 0, "param_groups"),
    "parameters missing": lambda s: replaced(
        s, [0, 1], "_train", "optimizers", 0, "param_groups", 0, "params"
    ),
    "slot of another shape": lambda s: replaced(s, torch.ones(2), *SLOT),
    "slot of an unknown parameter": lambda s: replaced(
        s, {"exp_avg": torch.ones(1)}, "_train", "optimizers", 0, "state", 77
    ),
    "scheduler missing": lambda s: replaced(s, [], "_train", "schedulers"),
    "state of another optimizer": lambda s: replaced(
        s,
        torch.optim.SGD(Net().parameters(), lr=0.1, momentum=0.9).state_dict(),
        "_train",
        "optimizers",
        0,
    ),
    "state of another scheduler": lambda s: replaced(
        s,
        torch.optim.lr_scheduler.ExponentialLR(adam(Net()), 0.5).state_dict(),
        "_train",
        "schedulers",
        0,
    ),
    "scheduler is no dict": lambda s: replaced(s, 3, "_train", "schedulers", 0),
}


@pytest.fixture(scope="module")
def graphs():
    """One that has stepped, one that has not; a state that is refused leaves both as they are."""
    graph, stepped, source = graph_of(), graph_of(), graph_of(seed=5)
    stepped(*data())
    source(*data())
    return {False: graph, True: stepped}, saved(source)


@pytest.mark.parametrize("stepped", [False, True])
@pytest.mark.parametrize("name", BAD)
def test_a_state_that_does_not_fit_is_refused_and_nothing_is_loaded(name, stepped, graphs):
    graph, state = graphs[0][stepped], BAD[name](graphs[1])
    before = snapshot(graph)

    with pytest.raises(StateDictMismatch):
        graph.load_state_dict(state)

    assert same(snapshot(graph), before)


def test_every_problem_is_listed():
    graph = graph_of()
    graph(*data())
    state = without(saved(graph), "model", "first.weight")
    state = replaced(state, torch.ones(7), "model", "second.bias")
    with pytest.raises(StateDictMismatch) as error:
        graph.load_state_dict({**state, "other": {}})
    for part in ("model.first.weight: missing", "(7,)", "(2,)", "other: unexpected"):
        assert part in str(error.value)


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
    graph = graph_of()
    assert graph.state_dict()["_train"]["step"] == 0
    for x in data(3):
        graph(x)
    state = saved(graph)
    assert state["_train"]["step"] == 3
    other = graph_of()
    other.load_state_dict(state)
    other(*data())
    assert other.state_dict()["_train"]["step"] == 4


def test_a_call_that_failed_is_not_counted():
    graph = graph_of()
    graph(*data())
    with pytest.raises(RuntimeError):
        graph(torch.ones(3, 9))
    assert graph.state_dict()["_train"]["step"] == 1


def test_loading_resets_what_the_graph_knows_of_its_schedulers():
    graph = graph_of()
    for x in data(3):
        graph(x)
    state = saved(graph)
    graph(*data())
    graph.load_state_dict(state)
    graph(*data())  # no SchedulerSteppedTwice
    assert graph.last_lr == [0.05 * 0.25]
