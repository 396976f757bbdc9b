"""An op that fails in the middle of a step, and an interrupt there: torn or whole, and said."""

import copy
import os
import signal

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.contract.models import Function, Net, Train, adam, data, eager, same, snapshot
from tests.support import settle
from torchgraph.errors import GraphBroken, StepFailed
from torchgraph.testing import counters

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


@pytest.fixture(autouse=True)
def _no_action():
    yield
    ACTION.clear()


class Plain(nn.Linear):
    def forward(self, x):
        return act(super().forward(x))


class ReadsStateInPlace(nn.Linear):
    def forward(self, x):
        return act(super().forward(x).add_(self.bias))


@pytest.mark.parametrize(
    ("kind", "calls"), [(Plain, 0), (ReadsStateInPlace, 1), (Plain, 4), (ReadsStateInPlace, 4)]
)
def test_an_op_that_fails_before_the_first_write_changes_nothing(kind, calls):
    """In a recorded call and in one by a program: eager's own error, which runs the call then."""
    torch.manual_seed(0)
    model = kind(4, 2)
    optimizer = adam(model)

    def function(x):
        loss = model(nn.functional.dropout(x)).square().mean()
        loss.backward()
        return loss

    graph = Function(function, optimizer, model=model)
    graph.config.set_look_again("off")  # it is about what a program does
    with counters.expect(replays=max(0, calls - 2)):
        for x in data(calls):
            graph(x)
    ACTION.append(fail)
    before = snapshot(model, optimizer)
    with pytest.raises(ValueError, match=r"^out of luck$"):
        graph(*data())
    assert same(snapshot(model, optimizer), before)
    assert [p.grad for p in model.parameters()] == [None, None]
    ACTION.clear()
    settle(graph, *data())


@pytest.mark.parametrize("calls", [0, 2])
def test_an_optimizer_that_fails_in_a_recorded_call_leaves_what_eager_leaves(calls):
    torch.manual_seed(0)
    model = Net().eval()
    twin = copy.deepcopy(model)
    optimizer, other = ActsLate(model.parameters()), ActsLate(twin.parameters())
    graph = Train(model, optimizer)
    for x in data(calls):
        graph(x)
        eager(twin, other, x)
    ACTION.append(fail)
    with pytest.raises(ValueError, match=r"^out of luck$"):
        graph(*data())
    with pytest.raises(ValueError, match=r"^out of luck$"):
        eager(twin, other, *data())
    assert same(snapshot(model, optimizer), snapshot(twin, other))
    ACTION.clear()
    twin.zero_grad()
    model.zero_grad()
    got, expected = graph(*data()), eager(twin, other, *data())  # no step of a program was torn
    assert torch.equal(got, expected)
    assert same(snapshot(model, optimizer), snapshot(twin, other))


STEPS = 4


def broken_graph():
    torch.manual_seed(0)
    model = Net()
    optimizer = ActsLate(model.parameters())
    graph = Train(model, optimizer)
    graph.config.set_look_again("off")  # it is about what a program does
    for _ in range(STEPS):
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
    expected = [eager(twin, other, *data()) for _ in range(STEPS + 1)]
    assert torch.equal(got, expected[-1])


def test_a_state_that_does_not_fit_leaves_the_graph_broken():
    _, _, graph, saved = broken_graph()
    with pytest.raises(tg.errors.StateDictMismatch):
        graph.load_state_dict({**saved, "other": {}})
    with pytest.raises(GraphBroken):
        graph(*data())


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("where", ["forward", "update"])
def test_ctrl_c_waits_for_the_end_of_the_step(where):
    """The interrupt comes in the middle; the step ends whole, then KeyboardInterrupt is raised."""
    torch.manual_seed(0)
    model = Fails()
    optimizer = ActsLate(model.parameters()) if where == "update" else adam(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    graph = Train(model, optimizer, scheduler)
    graph.config.set_look_again("off")  # it is about what a program does
    torch.manual_seed(0)
    twin = Fails()
    other = ActsLate(twin.parameters()) if where == "update" else adam(twin)
    schedule = torch.optim.lr_scheduler.StepLR(other, 1, 0.5)
    torch.manual_seed(1)
    for _ in range(STEPS + 1):
        eager(twin, other, *data())
        schedule.step()
    torch.manual_seed(1)
    for _ in range(STEPS):
        graph(*data())
    handler = signal.getsignal(signal.SIGINT)
    ACTION.append(lambda: os.kill(os.getpid(), signal.SIGINT))

    with counters.expect(replays=1), pytest.raises(KeyboardInterrupt):
        graph(*data())

    ACTION.clear()
    assert signal.getsignal(signal.SIGINT) is handler
    assert same(model.state_dict(), twin.state_dict())
    assert optimizer.param_groups[0]["lr"] == other.param_groups[0]["lr"]
    assert same(optimizer.state_dict()["state"], other.state_dict()["state"])
    assert graph.state_dict()["_train"]["step"] == STEPS + 1
    graph(*data())


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("calls", [0, 1])
def test_ctrl_c_in_the_forward_of_a_recorded_call_changes_nothing(calls):
    torch.manual_seed(0)
    model = Fails()
    optimizer = adam(model)
    graph = Train(model, optimizer)
    for x in data(calls):
        graph(x)
    before = snapshot(model, optimizer)
    ACTION.append(lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        graph(*data())
    ACTION.clear()
    assert same(snapshot(model, optimizer), before)
    settle(graph, *data())
