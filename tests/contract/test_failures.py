"""What fails or is interrupted within a call: taken back, torn and said, or the step ends whole."""

import copy
import os
import signal
import threading

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.cases.plays import Play
from tests.cases.table import Table
from tests.contract.models import Function, Net, Train, adam, data, eager, made, same, snapshot
from tests.support import settle
from torchgraph.errors import EagerWarning, GraphBroken, GraphError, StepFailed
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


def equal(count: int) -> list[torch.Tensor]:
    """Tensors of their own, with the same values."""
    return [data()[0] for _ in range(count)]


class Pair:
    """Equal models and optimizers that `act`: of a Graph, and of eager."""

    def __init__(self, late: bool = True, scheduler: bool = False) -> None:
        self.made = []
        for _ in range(2):
            torch.manual_seed(0)
            model = Net() if late else Fails()
            optimizer = ActsLate(model.parameters()) if late else adam(model)
            kind = torch.optim.lr_scheduler.StepLR
            self.made.append((model, optimizer, kind(optimizer, 1, 0.5) if scheduler else None))
        self.model, self.optimizer, schedule = self.made[0]
        self.graph = Train(self.model, self.optimizer, schedule)
        self.graph.config.set_look_again("off")  # it is about what a program does

    def run(self, *batches: torch.Tensor) -> list[torch.Tensor]:
        return [self.graph(x) for x in batches]

    def eager(self, *batches: torch.Tensor) -> list[torch.Tensor]:
        model, optimizer, schedule = self.made[1]
        found = []
        for x in batches:
            found.append(eager(model, optimizer, x))
            if schedule:
                schedule.step()
        return found

    def states(self) -> list[list[object]]:
        """Of the Graph's, and of eager's."""
        return [snapshot(*one[:2])[1:] for one in self.made]


@pytest.mark.parametrize("calls", [0, 2])
def test_an_optimizer_that_fails_in_a_recorded_call_leaves_what_eager_leaves(calls):
    pair = Pair()
    for model, *_ in pair.made:
        model.eval()
    pair.run(*data(calls))
    pair.eager(*data(calls))
    ACTION.append(fail)
    for run in (pair.run, pair.eager):
        with pytest.raises(ValueError, match=r"^out of luck$"):
            run(*data())
    assert same(*pair.states())
    ACTION.clear()
    for model, *_ in pair.made:
        model.zero_grad()
    assert same(pair.run(*data()), pair.eager(*data()))  # no step of a program was torn
    assert same(*pair.states())


def test_an_op_that_fails_after_a_write_breaks_the_graph_until_a_state_is_loaded():
    pair = Pair()
    torch.manual_seed(1)
    pair.run(*equal(4))
    saved = copy.deepcopy(pair.graph.state_dict())
    ACTION.append(fail)
    with pytest.raises(StepFailed, match=r"(?s)out of luck.*already updated.*load_state_dict"):
        pair.graph(*data())
    ACTION.clear()
    with pytest.raises(tg.errors.StateDictMismatch):
        pair.graph.load_state_dict({**saved, "other": {}})
    for x in (data()[0], data()[0], torch.ones(3, 4)):  # another shape is no way around it
        with pytest.raises(GraphBroken, match="out of luck"):
            pair.graph(x)
    pair.graph.load_state_dict(saved)
    got = pair.run(*data())
    torch.manual_seed(1)
    assert same(got, pair.eager(*equal(5))[-1:])


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("late", [False, True])
def test_ctrl_c_waits_for_the_end_of_the_step(late):
    """The interrupt comes in the middle; the step ends whole, then KeyboardInterrupt is raised."""
    pair = Pair(late, scheduler=True)
    torch.manual_seed(1)
    pair.eager(*equal(5))
    torch.manual_seed(1)
    pair.run(*equal(4))
    handler = signal.getsignal(signal.SIGINT)
    ACTION.append(interrupt)
    with counters.expect(replays=1), pytest.raises(KeyboardInterrupt):
        pair.graph(*data())
    ACTION.clear()
    assert signal.getsignal(signal.SIGINT) is handler
    assert same(*pair.states())
    assert pair.graph.state_dict()["_train"]["step"] == 5
    pair.graph(*data())


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("calls", [0, 1])
def test_ctrl_c_in_the_forward_of_a_recorded_call_changes_nothing(calls):
    pair = Pair(late=False)
    pair.run(*data(calls))
    before = snapshot(pair.model, pair.optimizer)
    ACTION.append(interrupt)
    with pytest.raises(KeyboardInterrupt):
        pair.graph(*data())
    ACTION.clear()
    assert same(snapshot(pair.model, pair.optimizer), before)
    settle(pair.graph, *data())


def test_a_build_that_raised_once_leaves_everything_and_works_later():
    (model, optimizer), (twin, other) = made(), made()
    fails = [KeyError("mine")]

    def function(x):
        loss = model(x).square().mean()
        loss.backward()
        model.note = 3
        if fails:
            raise fails.pop()
        del model.note
        return loss

    graph = Function(function, optimizer, model=model)
    before, attributes = snapshot(model, optimizer), dict(vars(model))
    with pytest.raises(KeyError, match="mine"):
        graph(*data())
    assert same(snapshot(model, optimizer), before)
    assert vars(model) == attributes
    assert not optimizer.state
    assert all(type(p) is nn.Parameter and p.grad is None for p in model.parameters())
    assert not graph.is_compiled
    state = torch.get_rng_state()
    got = graph(*data())
    torch.set_rng_state(state)
    assert torch.equal(got, eager(twin, other, *data()))
    assert same(model.state_dict(), twin.state_dict())


# --- what an op checks ----------------------------------------------------------------------------

CHECKED = {
    "cholesky": lambda x: torch.linalg.cholesky(x),
    "unused": lambda x: (torch.linalg.lu_factor(x), x * 2)[1],
    "assertion": lambda x: (torch._assert_async(x.sum()), x * 2)[1],
    "assertion that says it": lambda x: (torch._assert_async(x.any(), "zeros"), x * 2)[1],
}
table = Table(served=5)
table.rows(
    {
        name: lambda check=check: Play(
            check, calls=[(torch.eye(3) * (number % 5),) for number in range(1, 9)]
        )
        for name, check in CHECKED.items()
    }
)
table.rows(
    {
        "another default device": lambda: Play(
            lambda x: (x * 2, torch.ones(2).device.type),
            before={
                4: lambda: torch.set_default_device("meta"),
                7: lambda: torch.set_default_device(None),
            },
            calls=[(torch.ones(2),)] * 9,
        )
    },
    forms="graph",
    served=None,
)


@pytest.mark.parametrize("case", table)
def test_it_raises_and_looks_at_settings_as_eager_does(case):
    case.check()


# --- other threads --------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 6])
def test_a_call_in_another_thread(number):
    (model, optimizer), (twin, other) = made(), made()
    graph = Train(model, optimizer)
    torch.manual_seed(1)
    expected = [eager(twin, other, x) for x in data(8)]
    torch.manual_seed(1)
    got: list = []
    thread = threading.Thread(target=lambda: got.extend(graph(x) for x in data(8)[:number]))
    thread.start()
    thread.join()
    got.extend(graph(x) for x in data(8)[number:])
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

    assert not errors
    assert graph.state_dict()["_train"]["step"] == 15


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
    with pytest.warns(EagerWarning, match="another thread work by Thread.start"):
        got = [graph(*data()) for _ in range(6)]
    assert all(torch.equal(one, model(*data())) for one in got)
    assert len(out) == 6  # as in eager
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
