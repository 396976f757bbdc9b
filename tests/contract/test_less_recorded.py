"""What stands in nobody's way: it is served as eager would do it, or not recorded again."""

import warnings
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import torchgraph as tg
from torchgraph.reasons import Reason


class Trainer:
    def __init__(self):
        self.model = nn.Linear(4, 4)
        self.opt = torch.optim.SGD(self.model.parameters(), 0.1)
        self.weight, self.logs, self.rows = torch.ones(4, 4), False, []

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()

    def of_two(self, a, b):
        return self.update((self.model(a) * b).square().mean())

    def starred(self):
        return self.of_two(*self.batch)

    def looped(self):
        return self.update(sum(self.model(x).mean() for x in self.batch))

    def same_or_not(self):
        a, b = self.batch
        return self.of_two(a, b) * (2.0 if a is b else 1.0)

    def one_line(self):
        if self.logs:
            self.rows.append(sum(float(x.sum()) for x in self.batch))
        return self.of_two(self.one, self.other)


def fed(name, wrap):
    torch.manual_seed(0)
    trainer = Trainer()
    step, found = wrap(getattr(trainer, name)), []
    for call in range(18):
        trainer.one, trainer.other = torch.randn(2, 4), torch.randn(2, 4)
        pairs = {
            9: (trainer.one, trainer.one),
            10: (trainer.weight[:2], trainer.other),
            11: (trainer.one, trainer.model.weight[:2].detach()),
            13: tuple(torch.randn(4, 4).split(2)),
        }
        trainer.batch = pairs.get(call, (trainer.one, trainer.other))
        trainer.logs = call == 12
        found.append(step().item())
    return found, trainer.model.weight.tolist(), trainer.rows, step


@pytest.mark.filterwarnings("ignore::torchgraph.errors.GraphWarning")
@pytest.mark.parametrize("name", ["starred", "looped", "same_or_not", "one_line"])
def test_a_batch_in_an_attribute(name):
    expected, found = fed(name, lambda f: f), fed(name, tg.step)
    assert found[:3] == expected[:3]
    served = found[3].report().calls.programs
    assert served >= 4 or name == "same_or_not"


def scratch(kind):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.held = nn.Linear(4, 1), None
            self.own = {"a": 1.0, "rows": [1.0, 2.0]}

        def forward(self, x):
            if kind == "list":
                self.held = [x, self.own["rows"]]
                out = self.inner(self.held[0]) * sum(self.held[1])
            elif kind == "dict":
                self.held = {"x": x, "cfg": self.own}
                out = self.inner(self.held["x"]) * self.held["cfg"]["a"]
            else:
                self.held = self.own
                out = self.inner(x) * self.held["a"]
            self.held = None
            return out

    return Net()


@pytest.mark.parametrize("kind", ["list", "dict", "itself"])
def test_scratch_in_a_module(kind):
    """What lies in it besides is read, wherever it lies for good."""

    def run(wrap):
        torch.manual_seed(0)
        net = scratch(kind)
        opt = torch.optim.SGD(net.parameters(), 0.1)

        def function(x):
            loss = net(x).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            return loss

        step, found = wrap(function), []
        for call in range(14):
            if call == 7:
                net.own["a"] = 3.0
                net.own["rows"].append(4.0)
                net.own["b"] = 0.0
            found.append(step(torch.randn(2, 4)).item())
        return found, step

    (expected, _), (found, step) = run(lambda f: f), run(tg.step)
    assert found == expected
    assert step.report().calls.programs == 10


class Wrapped(torch.optim.Optimizer):
    """As accelerate's: it has no groups of its own."""

    state = property(lambda self: self.optimizer.state)
    param_groups = property(lambda self: self.optimizer.param_groups)

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def zero_grad(self):
        self.optimizer.zero_grad()

    def step(self, closure=None):
        self.optimizer.step(closure)


def test_a_wrapped_optimizer_and_a_proxy():
    def run(wrap):
        torch.manual_seed(0)
        model, strategy = nn.Linear(4, 1), type("Strategy", (), {"scale": 2.0})()
        inner = torch.optim.SGD(model.parameters(), 0.1)
        opt, held = Wrapped(inner), SimpleNamespace(strategy=weakref.proxy(strategy))

        def function(x):
            opt.zero_grad()
            assert held.strategy is not None
            loss = model(x).square().mean() * held.strategy.scale
            loss.backward()
            opt.step()
            return loss

        step, found = wrap(function), []
        for call in range(14):
            inner.param_groups[0]["lr"] *= 0.9
            strategy.scale = 2.0 if call < 8 else 3.0
            found.append(step(torch.ones(2, 4)).item())
        return found, step

    (expected, _), (found, step) = run(lambda f: f), run(tg.step)
    assert found == expected
    assert step.report().calls.programs == 10


def test_kinds_of_calls_without_end_are_recorded_in_the_first_two_calls_alone():
    model = nn.Linear(4, 1)
    step = tg.step(lambda x: model(x).sum())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for call in range(60):
            step(torch.ones(1 + call * 7 % 27, 4))
    calls = step.report().calls
    assert calls.recorded == 2  # in which a step that can be no program is an error
    assert {one.reason for one in calls.eager} == {Reason.ARGUMENTS}
    assert "config.set_shape_buckets(0, sizes)" in calls.eager[0].why
    assert len(said) == 1
    for _ in range(6):  # one has come to stay
        step(torch.ones(5, 4))
    assert step.report().calls.programs == 2
