"""A failed call changes nothing, or says that it did; interrupts wait; the next good call works."""

import copy
import os
import signal
import threading

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.contract.models import (
    Eval,
    Function,
    Net,
    Train,
    adam,
    data,
    eager,
    made,
    same,
    snapshot,
)
from torchgraph.errors import GraphBroken, GraphError, StepFailed

ACTION: list = []


@torch.library.custom_op("torchgraph_tests::act", mutates_args=())
def act(x: torch.Tensor) -> torch.Tensor:
    """A copy of ``x``; does first whatever the test put into ACTION."""
    for action in ACTION:
        action()
    return x.clone()


@act.register_fake
def _(x):
    return torch.empty_like(x)


act.register_autograd(lambda ctx, gradient: gradient)


@pytest.fixture(autouse=True)
def _no_action():
    yield
    ACTION.clear()


def fail():
    raise ValueError("out of luck")


class Fails(Net):
    """Acts at the end of forward: before anything is written, but for the buffers of BatchNorm."""

    def forward(self, x):
        return act(super().forward(x))


class ActsLate(torch.optim.Optimizer):
    """Acts between the updates of two parameters; counts its steps in a Python int."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for number, parameter in enumerate(self.param_groups[0]["params"]):
            state = self.state[parameter]
            state["step"] = state.get("step", 0) + 1
            gradient = act(parameter.grad) if number == 2 else parameter.grad
            parameter.add_(gradient, alpha=-0.1 / state["step"])


def test_a_build_that_raised_once_leaves_everything_and_works_later():
    model, optimizer = made()
    twin, other = made()
    fail_now = [True]

    def function(x):
        loss = model(x).square().mean()
        loss.backward()
        model.note = 3
        if fail_now[0]:
            raise KeyError("mine")
        del model.note
        return loss

    graph = Function(function, optimizer, model=model)
    before = snapshot(model, optimizer)
    attributes = dict(vars(model))
    with pytest.raises(KeyError, match="mine"):
        graph(*data())
    assert same(snapshot(model, optimizer), before)
    assert vars(model) == attributes
    assert not optimizer.state
    assert all(type(p) is nn.Parameter and p.grad is None for p in model.parameters())
    assert not graph.is_compiled
    fail_now[0] = False
    state = torch.get_rng_state()
    got = graph(*data())
    torch.set_rng_state(state)
    assert torch.equal(got, eager(twin, other, *data()))
    assert same(model.state_dict(), twin.state_dict())


def test_a_bad_input_between_good_calls():
    model, optimizer = made()
    graph = Train(model, optimizer)
    graph(*data())
    before = snapshot(model, optimizer)
    with pytest.raises(RuntimeError, match=r"3.*7"):
        graph(torch.ones(3, 7))
    assert same(snapshot(model, optimizer), before)
    graph(*data())


class Plain(nn.Linear):
    def forward(self, x):
        return act(super().forward(x))


class ReadsStateInPlace(nn.Linear):
    def forward(self, x):
        return act(super().forward(x).add_(self.bias))


@pytest.mark.parametrize("kind", [Plain, ReadsStateInPlace])
def test_an_op_that_fails_before_the_first_write_changes_nothing(kind):
    torch.manual_seed(0)
    model = kind(4, 2)
    optimizer = adam(model)

    def function(x):
        loss = model(nn.functional.dropout(x)).square().mean()
        loss.backward()
        return loss

    graph = Function(function, optimizer, model=model)
    graph(*data())
    ACTION.append(fail)
    before = snapshot(model, optimizer)
    with pytest.raises(StepFailed, match=r"(?s)out of luck.*Nothing was.*test_failures") as error:
        graph(*data())
    assert isinstance(error.value.__cause__, ValueError)
    assert same(snapshot(model, optimizer), before)
    ACTION.clear()
    graph(*data())


def broken_graph():
    torch.manual_seed(0)
    model = Net()
    optimizer = ActsLate(model.parameters())
    graph = Train(model, optimizer)
    for _ in range(2):
        graph(*data())
    saved = copy.deepcopy(graph.state_dict())
    ACTION.append(fail)
    with pytest.raises(StepFailed, match=r"(?s)out of luck.*already updated.*load_state_dict"):
        graph(*data())
    ACTION.clear()
    return model, optimizer, graph, saved


def test_an_op_that_fails_after_a_write_breaks_the_graph_until_a_state_is_loaded():
    _, _, graph, saved = broken_graph()
    for x in (data()[0], data()[0], torch.ones(3, 4)):  # another shape is no way around it
        with pytest.raises(GraphBroken, match="out of luck"):
            graph(x)
    graph.load_state_dict(saved)
    got = graph(*data())

    torch.manual_seed(0)
    twin = Net()
    other = ActsLate(twin.parameters())
    expected = [eager(twin, other, *data()) for _ in range(3)]
    assert torch.equal(got, expected[-1])


def test_a_state_that_does_not_fit_leaves_the_graph_broken():
    _, _, graph, saved = broken_graph()
    with pytest.raises(tg.errors.StateDictMismatch):
        graph.load_state_dict({**saved, "other": {}})
    with pytest.raises(GraphBroken):
        graph(*data())


@pytest.fixture
def interruptible():
    """A shell starts what it runs in the background with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("where", ["forward", "update"])
def test_ctrl_c_waits_for_the_end_of_the_step(where):
    """The interrupt comes in the middle; the step ends whole, then KeyboardInterrupt is raised."""
    torch.manual_seed(0)
    model, twin = Fails(), None
    optimizer = ActsLate(model.parameters()) if where == "update" else adam(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    graph = Train(model, optimizer, scheduler)
    torch.manual_seed(0)
    twin = Fails()
    other = ActsLate(twin.parameters()) if where == "update" else adam(twin)
    torch.manual_seed(1)
    eager(twin, other, *data())
    torch.manual_seed(1)
    handler = signal.getsignal(signal.SIGINT)
    ACTION.append(lambda: os.kill(os.getpid(), signal.SIGINT))

    with pytest.raises(KeyboardInterrupt):
        graph(*data())

    ACTION.clear()
    assert signal.getsignal(signal.SIGINT) is handler
    assert same(model.state_dict(), twin.state_dict())
    other.param_groups[0].update(lr=0.5 * other.param_groups[0]["lr"])
    assert optimizer.param_groups[0]["lr"] == other.param_groups[0]["lr"]
    assert same(optimizer.state_dict()["state"], other.state_dict()["state"])
    assert graph.state_dict()["_train"]["step"] == 1
    graph(*data())


def test_ctrl_c_during_capture_leaves_everything():
    model, optimizer = made()
    interrupt = [True]

    def function(x):
        loss = model(x).square().mean()
        loss.backward()
        if interrupt[0]:
            raise KeyboardInterrupt
        return loss

    graph = Function(function, optimizer, model=model)
    before = snapshot(model, optimizer)
    with pytest.raises(KeyboardInterrupt):
        graph(*data())
    assert same(snapshot(model, optimizer), before)
    interrupt[0] = False
    graph(*data())


def test_a_call_in_another_thread():
    model, optimizer = made()
    twin, other = made()
    graph = Train(model, optimizer)
    torch.manual_seed(1)
    expected = [eager(twin, other, x) for x in data(4)]
    torch.manual_seed(1)
    got: list = []

    def work():
        got.extend(graph(x) for x in data(4)[:2])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    got.extend(graph(x) for x in data(4)[2:])
    assert same(got, expected)
    assert same(model.state_dict(), twin.state_dict())


def test_calls_from_several_threads_are_steps_one_after_the_other():
    model = nn.Linear(4, 2)
    graph = Train(model, torch.optim.SGD(model.parameters(), lr=0.01))
    errors: list = []

    def work():
        try:
            for _ in range(5):
                graph(*data())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    twin = nn.Linear(4, 2)
    assert not errors
    assert graph.state_dict()["_train"]["step"] == 15
    del twin


def test_two_graphs_captured_by_two_threads_at_once():
    models = [made(seed)[0].eval() for seed in range(2)]
    graphs = [Eval(model) for model in models]
    got: dict = {}

    def work(number):
        got[number] = [graphs[number](x) for x in data(3)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, model in enumerate(models):
        assert same(got[number], [model(x).detach() for x in data(3)])


def test_a_module_called_in_another_thread_during_a_capture_is_not_recorded():
    model, _ = made()
    other = nn.Linear(4, 4)
    out: list = []

    def function(x):
        thread = threading.Thread(target=lambda: out.append(other(torch.ones(1, 4)).detach()))
        thread.start()
        thread.join()
        return model(x)

    graph = Function(function, model=model.eval())
    got = graph(*data())
    assert torch.equal(got, model(*data()))
    assert torch.equal(out[0], other(torch.ones(1, 4)))
    assert type(out[0]) is torch.Tensor


def test_an_error_of_ours_is_also_what_oneflow_raises():
    for ours, theirs in (
        (tg.errors.BuildNotOverridden, NotImplementedError),
        (tg.errors.OptimizerAttribute, AttributeError),
        (tg.errors.TensorAttribute, AttributeError),
        (tg.errors.ModuleNameTaken, KeyError),
        (tg.errors.NotAnOptimizer, AssertionError),
    ):
        assert issubclass(ours, theirs)
        assert issubclass(ours, GraphError)


def test_an_anomaly_or_default_dtype_change_is_another_program():
    graph = Function(lambda x: x * torch.ones(2).sum())
    x = torch.ones(2)
    assert graph(x).dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert graph(x).dtype is (x * torch.ones(2).sum()).dtype
        assert Function(lambda: torch.ones(2))().dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_default_device_is_another_program():
    graph = Function(lambda x: (x * 2, torch.ones(2)))
    x = torch.ones(2)
    assert graph(x)[1].device.type == "cpu"
    with torch.device("meta"):
        assert graph(x)[1].device.type == "meta"
    assert graph(x)[1].device.type == "cpu"


def test_a_hook_on_all_modules_is_another_program():
    model = nn.Linear(2, 2)
    graph = Function(lambda x: graph.model(x))
    graph.model = model
    x = torch.ones(2)
    assert torch.equal(graph(x), model(x))
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, out: out * 2)
    try:
        assert torch.equal(graph(x), model(x))
    finally:
        handle.remove()
    assert torch.equal(graph(x), model(x))
