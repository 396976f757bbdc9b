"""Names of a step: what it moves itself, what moves each time, and what looking at them costs."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.contract.models import Function, Train, made
from torchgraph.errors import EagerWarning
from torchgraph.testing import counters

counter = 0


def calls(graph, build, count):
    for _ in range(count):
        x = torch.randn(4)
        assert torch.equal(graph(x), build(x))


def test_a_number_that_moves_each_call_is_eager_and_said_once():
    config = SimpleNamespace(beta=0.0)

    def build(x):
        return x * config.beta

    graph = Function(build)
    words = r"config\.beta was .* and is .*: pass it as an argument, a number as a tensor"

    def anneal():
        for number in range(20):
            config.beta = number / 10
            calls(graph, build, 1)

    with pytest.warns(EagerWarning, match=words) as warned:
        anneal()
    assert len(warned) == 1
    calls(graph, build, 14)  # in which it is looked at again
    with counters.expect(replays=6):  # it rests
        calls(graph, build, 6)


def test_a_rate_that_a_scheduler_moves_and_build_reads():
    sgd = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5)

    def build(x):
        return x * sgd.param_groups[0]["lr"]

    graph = Function(build)

    def anneal():
        for _ in range(12):
            sgd.param_groups[0]["lr"] *= 0.9
            calls(graph, build, 1)

    with pytest.warns(EagerWarning, match="lr"):
        anneal()


def test_settings_that_build_does_not_look_at_may_move():
    model, optimizer = made()

    def build(x):
        loss = model(x).square().mean()
        loss.backward()
        for group in optimizer.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], 1.0)
        return loss

    graph = Function(build, optimizer, model=model)
    with counters.expect(replays=7):
        for _ in range(9):
            optimizer.param_groups[0]["lr"] *= 0.9
            graph(torch.randn(5, 4))


def test_a_branch_that_is_not_taken_reads_nothing():
    config = SimpleNamespace(verbose=False, number=0)

    def build(x):
        if config.verbose:
            x = x + config.number
        return x * 2

    graph = Function(build)
    with counters.expect(captures=1, replays=6):
        for number in range(8):
            config.number = number
            calls(graph, build, 1)
    config.verbose = True
    calls(graph, build, 1)


def test_a_counter_that_nothing_reads_is_no_guard():
    config = SimpleNamespace(calls=0)
    table = {"calls": 0}

    def build(x):
        global counter
        counter += 1
        config.calls += 1
        table["calls"] += 1
        return x * 2

    graph = Function(build)
    with counters.expect(captures=1, replays=4):
        calls(graph, lambda x: x * 2, 6)


@pytest.mark.parametrize("by", ["object", "dict", "closure"])
def test_a_counter_that_a_branch_reads_is_served(by):
    """The branch turns at a call that no recording has seen."""
    config, table, seen = SimpleNamespace(calls=0), {"calls": 0}, 0

    def build(x):
        nonlocal seen
        if by == "object":
            config.calls += 1
            count = config.calls
        elif by == "dict":
            table["calls"] = table["calls"] + 1
            count = table["calls"]
        else:
            seen += 1
            count = seen
        return x * 2 if count < 9 else x * 3

    graph = Function(build)
    with counters.expect(replays=5):
        calls(graph, lambda x: x * 2, 8)
    with counters.expect(replays=1):
        calls(graph, lambda x: x * 3, 3)


def test_what_a_step_writes_before_it_reads_it_is_its_own():
    config = SimpleNamespace(scale=0.0)

    def build(x):
        config.scale = 2.0
        return x * config.scale

    graph = Function(build)
    with counters.expect(captures=1, replays=4):
        for number in range(6):
            config.scale = float(number)
            calls(graph, build, 1)


def test_a_cache_that_is_filled_settles():
    cache = {}

    def build(x):
        key = x.shape[0]
        if key not in cache:
            cache[key] = torch.arange(key).float()
        return x * cache[key]

    graph = Function(build)
    with counters.expect(replays=3):
        calls(graph, build, 6)


def test_a_log_that_grows_is_no_guard():
    log = []

    def build(x):
        log.append(1)
        return x * 2

    graph = Function(build)
    with counters.expect(captures=1, replays=4):
        calls(graph, lambda x: x * 2, 6)


def test_a_tensor_that_is_another_one_in_each_call_is_eager_and_said_once():
    held = SimpleNamespace(weight=torch.ones(4))

    def build(x):
        return x * held.weight

    graph = Function(build)

    def replace():
        for number in range(9):
            held.weight = torch.full((4,), float(number))
            calls(graph, build, 1)

    with pytest.warns(EagerWarning, match=r"held\.weight") as warned:
        replace()
    assert len(warned) == 1


def test_a_setting_of_a_module_that_holds_a_list():
    class Scaled(nn.Linear):
        def __init__(self):
            super().__init__(4, 4)
            self.factors = [1.0, 2.0]

        def forward(self, x):
            for factor in self.factors:
                x = x * factor
            return super().forward(x)

    model = Scaled()
    graph = Function(lambda x: model(x), model=model)
    with torch.no_grad():
        calls(graph, model.forward, 4)
        model.factors[1] = 3.0
        calls(graph, model.forward, 4)
        model.factors[1] = 2.0
        with counters.expect(captures=0, replays=2):
            calls(graph, model.forward, 2)


def test_training_with_a_number_of_the_loss_object():
    class Loss:
        gamma = 1.0

        def __call__(self, x):
            return (x * self.gamma).square().mean()

    def run(graphed):
        model, optimizer = made()
        loss_fn = Loss()

        def build(x):
            loss = loss_fn(model(x))
            loss.backward()
            return loss

        def eager(x):
            loss = build(x)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        step = Function(build, optimizer, model=model) if graphed else eager
        found = []
        for number in range(12):
            loss_fn.gamma = 1.0 if number % 8 < 5 else 2.0
            found.append(step(torch.full((5, 4), number / 10)))
        return [*found, *model.state_dict().values()]

    assert all(map(torch.equal, run(False), run(True)))


def test_a_report_lists_the_names():
    held = SimpleNamespace(beta=0.5)
    graph = Function(lambda x: x * held.beta)
    for _ in range(3):
        graph(torch.randn(4))
    assert ("held.beta", "0.5") in [(guard.name, guard.value) for guard in graph.report().guards]


def test_a_class_defined_by_inheritance_reads_class_values():
    class Base(tg.Graph):
        factor = 2.0

        def build(self, x):
            return x * type(self).factor * self.factor

    class Child(Base):
        pass

    graph, x = Child(), torch.ones(3)
    for _ in range(4):
        assert torch.equal(graph(x), x * 4)
    Base.factor = 3.0
    for _ in range(4):
        assert torch.equal(graph(x), x * 9)
    Child.factor = 1.0
    assert torch.equal(graph(x), x)


def test_a_training_step_reads_no_more_than_it_did():
    model, optimizer = made()
    graph = Train(model, optimizer)
    with counters.expect(captures=1):
        for _ in range(6):
            graph(torch.randn(5, 4))


def test_a_slot_a_class_value_and_a_variable_that_are_gone():
    class Slots:
        __slots__ = ("beta",)

    class Config:
        gamma = 2.0

    slots, config = Slots(), Config()
    slots.beta = 0.5

    def build(x):
        return x * getattr(slots, "beta", 3.0) * getattr(config, "gamma", 5.0)

    graph = Function(build)
    calls(graph, build, 4)
    del slots.beta
    calls(graph, build, 4)
    del Config.gamma
    calls(graph, build, 4)
