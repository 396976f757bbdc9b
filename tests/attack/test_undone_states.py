"""What fails while a state is loaded, in code of the user's, leaves everything as it was."""

import copy
import signal
import threading

import pytest
import torch
from torch import nn, optim
from torch.nn.utils.parametrizations import weight_norm
from torch.optim import lr_scheduler

from tests.contract.models import Eval, Function, Net, Train, adam, data, same, snapshot
from torchgraph.errors import StateDictMismatch


def fails(*_: object, **__: object) -> None:
    raise ZeroDivisionError("of my own")


class Overrides(nn.Linear):
    """The last module of its parent: it fails when the others are written."""

    wrong = False

    def _load_from_state_dict(self, *args: object) -> None:
        super()._load_from_state_dict(*args)
        if self.wrong:
            self.bias = nn.Parameter(torch.ones(2))
            fails()


class Extra(nn.Linear):
    """Reads an entry of its own."""

    wrong = False

    def __init__(self) -> None:
        super().__init__(6, 2)
        self.seen = [1]

    def get_extra_state(self) -> object:
        return {"seen": list(self.seen)}

    def set_extra_state(self, state: dict) -> None:
        self.seen[:] = state["seen"]
        if self.wrong:
            fails()


class InPlace(optim.SGD):
    """Loads by writing into the slots that it has."""

    wrong = False

    def load_state_dict(self, state: dict) -> None:
        for index, slots in enumerate(self.state.values()):
            slots["momentum_buffer"].copy_(state["state"][index]["momentum_buffer"])
        self.param_groups[0]["lr"] = 7.0
        if self.wrong:
            fails()


class Custom(lr_scheduler.StepLR):
    """A scheduler that fails after it has taken a part."""

    _wrong = False

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        if self._wrong:
            fails()


def made(last=lambda: nn.Linear(6, 2), optimizer=adam, schedule=lr_scheduler.StepLR, seed=0):
    torch.manual_seed(seed)
    model = Net()
    model.second = last()
    trained = optimizer(model)
    graph = Train(model, trained, schedule(trained, 2))
    graph.set_grad_scaler(torch.amp.GradScaler("cpu", init_scale=4.0))
    for x in data(2 + seed):
        graph(x)
    return graph


def hooked(graph):
    graph._modules["model"].register_load_state_dict_post_hook(fails)


def hooked_optimizer(graph):
    graph._runner.live.optimizers[0].register_load_state_dict_post_hook(fails)


def wrong(part, name="wrong"):
    def turned(graph):
        setattr(part(graph), name, True)

    return turned


FAILS = {
    "an override": ({"last": lambda: Overrides(6, 2)}, wrong(lambda g: g._modules["model"].second)),
    "extra state": ({"last": Extra}, wrong(lambda g: g._modules["model"].second)),
    "a hook": ({}, hooked),
    "a hook of the optimizer": ({}, hooked_optimizer),
    "an optimizer": (
        {"optimizer": lambda m: InPlace(m.parameters(), lr=0.1, momentum=0.9)},
        wrong(lambda g: g._runner.live.optimizers[0]),
    ),
    "a scheduler": (
        {"schedule": Custom},
        wrong(lambda g: next(iter(g._runner.live.schedulers)), "_wrong"),
    ),
}


@pytest.mark.parametrize("name", FAILS)
def test_a_failure_half_way_is_undone(name):
    kinds, spoil = FAILS[name]
    graph, source = made(**kinds), made(**kinds, seed=3)
    state = copy.deepcopy(source.state_dict())
    spoil(graph)
    parameter = graph._modules["model"].first.weight
    slots = graph._runner.live.optimizers[0].state[parameter]
    before, held = snapshot(graph), {key: id(value) for key, value in slots.items()}

    with pytest.raises(StateDictMismatch) as found:
        graph.load_state_dict(state)

    assert same(snapshot(graph), before)
    assert graph._modules["model"].first.weight is parameter
    assert graph._runner.live.optimizers[0].state[parameter] is slots
    assert {key: id(value) for key, value in slots.items()} == held
    assert isinstance(graph._modules["model"].second.bias, nn.Parameter)
    assert isinstance(found.value.__cause__, ZeroDivisionError)
    assert "could not be loaded" in str(found.value)
    kept = [graph(x) for x in data(2)]
    assert all(loss.isfinite() for loss in kept)


def test_an_interrupt_waits_until_all_is_loaded(interruptible):
    graph, source = made(), made(seed=3)
    state = copy.deepcopy(source.state_dict())
    graph._modules["model"].second.register_load_state_dict_post_hook(
        lambda *_: signal.raise_signal(signal.SIGINT)
    )

    with pytest.raises(KeyboardInterrupt):
        graph.load_state_dict(state)

    assert same(snapshot(graph), snapshot(source))
    assert all(graph(x).isfinite() for x in data(2))


def test_each_problem_is_named_and_no_more_than_thirty():
    graph = made()
    state = copy.deepcopy(graph.state_dict())
    train = state["_train"]
    state["model"]["first.weight"] = torch.ones(6, 4, dtype=torch.int64)
    train["optimizers"][0]["state"][0].pop("exp_avg")
    train["optimizers"][0]["state"][1]["exp_avg_sq"] = torch.ones(6, dtype=torch.complex64)
    train["schedulers"][0]["last_epoch"] = True
    train["scaler"]["scale"] = -1.0
    train["rng"]["cpu"] = torch.zeros(3)
    train["step"] = -1
    with pytest.raises(StateDictMismatch) as found:
        graph.load_state_dict(state)
    for part in (
        *("model.first.weight", "state.0.exp_avg: missing", "state.1.exp_avg_sq", "last_epoch"),
        *("scaler.scale", "rng.cpu", "_train.step"),
    ):
        assert part in str(found.value)
    with pytest.raises(StateDictMismatch, match=r"… 970 more") as found:
        graph.load_state_dict({**graph.state_dict(), **dict.fromkeys(map(str, range(1000)))})
    assert len(str(found.value).splitlines()) == 32


def test_a_state_that_is_the_live_one_or_overlaps_it():
    graph = made()
    expected = snapshot(graph)
    graph.load_state_dict(graph.state_dict())
    assert same(snapshot(graph), expected)

    one, two = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
    both = Function(lambda x: two(one(x)), one=one, two=two)
    values = one.weight.detach().clone(), two.weight.detach().clone()
    state = both.state_dict()
    both.load_state_dict({"one": state["two"], "two": state["one"]})
    assert torch.equal(one.weight, values[1])
    assert torch.equal(two.weight, values[0])

    memory = torch.arange(12.0)
    one.weight.data = memory[:9].view(3, 3)
    both.load_state_dict(
        {"one": {"weight": memory[3:].view(3, 3)}, "two": {"weight": memory[:9].view(3, 3).t()}}
    )
    assert torch.equal(one.weight.flatten(), torch.arange(3.0, 12.0))
    assert torch.equal(two.weight, torch.arange(9.0).view(3, 3).t())


def test_names_that_a_module_reads_in_its_own_way():
    model, source = weight_norm(nn.Linear(2, 2)), weight_norm(nn.Linear(2, 2))
    state = source.state_dict()
    old = {"bias": state["bias"], "weight_g": state["parametrizations.weight.original0"]}
    old["weight_v"] = state["parametrizations.weight.original1"]
    Eval(model).load_state_dict({"model": old})
    assert torch.equal(model.weight, source.weight)
    with pytest.raises(StateDictMismatch):
        Eval(model).load_state_dict({"model": {"bias": state["bias"]}})


def test_a_counter_that_was_cast_with_all_else_is_taken():
    model = nn.BatchNorm1d(2)
    state = {key: value.double() for key, value in model.state_dict().items()}
    Eval(model).load_state_dict({"model": state})
    state["num_batches_tracked"] = torch.tensor(0.5)
    with pytest.raises(StateDictMismatch, match="num_batches_tracked"):
        Eval(model).load_state_dict({"model": state})


def test_parameters_without_a_gradient_have_no_slots():
    def graph():
        torch.manual_seed(0)
        used, unused = nn.Linear(4, 2), nn.Linear(3, 3)

        def function(x):
            loss = used(x).square().mean()
            loss.backward()
            return loss

        parameters = [*used.parameters(), *unused.parameters()]
        return Function(function, optim.AdamW(parameters), used=used, unused=unused)

    first, second = graph(), graph()
    first(*data())
    state = copy.deepcopy(first.state_dict())
    first.load_state_dict(state)
    second.load_state_dict(state)
    del state["_train"]["optimizers"][0]["state"][0]
    with pytest.raises(StateDictMismatch, match=r"state\.0"):
        first.load_state_dict(state)
    first.load_state_dict(state, strict=False)


def test_objects_with_code_of_their_own_do_not_get_through():
    class Hostile(dict):
        def items(self):
            fails()

        def __iter__(self):
            fails()

        def __repr__(self):
            fails()

    graph = made()
    before = snapshot(graph)
    good = graph.state_dict()
    loop = {**good, "_train": {**good["_train"], "scaler": {**good["_train"]["scaler"]}}}
    loop["_train"]["scaler"]["scale"] = loop
    for state in (
        loop,
        Hostile(good),
        {**good, "model": Hostile(good["model"])},
        {**good, "_train": {**good["_train"], "calls": Hostile(a=1)}},
        {**good, "_train": {**good["_train"], "step": threading.Lock()}},
        {**good, "model": {**good["model"], "first.weight": Hostile()}},
    ):
        with pytest.raises(StateDictMismatch):
            graph.load_state_dict(state)
    assert same(snapshot(graph), before)
