"""``tg.step``: what it can be put on, what it shows, saves and refuses."""

from __future__ import annotations

import copy
import functools
import gc
import io
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchgraph as tg
from tests import support
from tests.contract.loops import Loop, assert_as_eager, mlp, pairs, snapshot
from torchgraph.counters import counters
from torchgraph.errors import InvalidOption, NotAnOptimizer

# --- what it is put on ----------------------------------------------------------------------------

model = mlp()
optimizer = torch.optim.Adam(model.parameters())


def train_globals(x, y):
    optimizer.zero_grad()
    loss = functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def test_a_function_that_names_globals(monkeypatch):
    def make():
        monkeypatch.setitem(globals(), "model", mlp())
        monkeypatch.setitem(globals(), "optimizer", torch.optim.Adam(model.parameters()))
        return Loop(train_globals, [model, optimizer])

    assert_as_eager(make, pairs(8), replayed=6)


def test_a_decorator_keeps_name_and_docstring():
    @tg.step
    def train(x):
        """One step."""
        return x + 1

    assert (train.__name__, train.__doc__) == ("train", "One step.")
    assert isinstance(train, tg.Graph)
    assert train.name.startswith("train_")


class Trainer:
    """With a step for each object."""

    def __init__(self, rate: float) -> None:
        self.model = mlp()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=rate)
        self.scale = rate

    def loss(self, x, y):
        return functional.mse_loss(self.model(x), y) * self.scale

    def plain(self, x, y):
        self.optimizer.zero_grad()
        loss = self.loss(x, y)
        loss.backward()
        self.optimizer.step()
        return loss

    step = tg.step(plain)


def test_a_method_of_two_objects():
    found = []
    for name in ("plain", "step"):
        torch.manual_seed(0)
        first, second = Trainer(0.01), Trainer(0.1)
        torch.manual_seed(1)
        before = counters.replays
        for x, y in pairs(8)():
            found.append([snapshot(getattr(one, name)(x, y)) for one in (first, second)])
        found.append(snapshot([first.model, first.optimizer, second.model, second.optimizer]))
    half = len(found) // 2

    assert str(found[:half]) == str(found[half:])
    assert counters.replays - before == 12
    assert first.step is first.step
    assert first.step is not second.step
    assert list(first.step.state_dict()) == ["model", "_train"]


def test_an_object_with_a_step_is_collected():
    trainer = Trainer(0.1)
    for batch in pairs(5)():
        trainer.step(*batch)
    gone = weakref.ref(trainer.model[0].weight)
    del trainer
    gc.collect()

    assert gone() is None


def test_a_copy_of_an_object_has_a_step_of_its_own():
    trainer = Trainer(0.1)
    for batch in pairs(5)():
        trainer.step(*batch)
    other = copy.deepcopy(trainer)
    before = snapshot(trainer.model)
    for batch in pairs(5)():
        other.step(*batch)

    assert other.step is not trainer.step
    assert str(snapshot(trainer.model)) == str(before)
    assert str(snapshot(other.model)) != str(before)


def test_an_override_calls_the_step_of_its_base():
    class Loud(Trainer):
        calls = 0

        def step(self, x, y):
            self.calls += 1
            return super().step(x, y)

    trainer = Loud(0.1)
    for batch in pairs(5)():
        trainer.step(*batch)

    assert trainer.calls == 5


def test_an_object_without_a_dict():
    class Slotted:
        __slots__ = ("model",)

        @tg.step
        def step(self, x):
            return x

    with pytest.raises(InvalidOption, match="__slots__"):
        Slotted().step(torch.ones(1))


def test_a_partial():
    def make():
        net = mlp()
        optim = torch.optim.Adam(net.parameters())

        def step(net, optim, x, y, scale=1.0):
            loss = functional.mse_loss(net(x), y) * scale
            optim.zero_grad()
            loss.backward()
            optim.step()
            return loss

        return Loop(functools.partial(step, net, optim, scale=2.0), [net, optim])

    assert_as_eager(make, pairs(8), replayed=6)


def test_an_optimizer_that_no_look_finds():
    # It lies too deep: the call that steps it is eager's, from then on it is known.
    def make():
        net = mlp()
        deep = {"a": {"b": {"c": {"d": {"e": torch.optim.Adam(net.parameters())}}}}}

        def step(x, y):
            loss = functional.mse_loss(net(x), y)
            net.zero_grad()
            loss.backward()
            deep["a"]["b"]["c"]["d"]["e"].step()
            return loss

        return Loop(step, [net, deep["a"]["b"]["c"]["d"]["e"]])

    assert_as_eager(make, pairs(8), replayed=5)


# --- what it shows --------------------------------------------------------------------------------


def trained() -> tuple[nn.Module, torch.optim.Optimizer, Any, Any]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optim = torch.optim.Adam(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optim, 0.9)

    @tg.step
    def train(x, y):
        optim.zero_grad()
        loss = functional.mse_loss(net(x), y)
        loss.backward()
        optim.step()
        schedule.step()
        return loss

    return net, optim, schedule, train


def test_a_check_finds_nothing_and_changes_nothing():
    net, optim, schedule, train = trained()
    batches = pairs(6)()
    for batch in batches[:4]:
        train(*batch)
    optim.zero_grad()
    before = snapshot([net, optim, schedule])

    assert train.check(*batches[4]) is None
    assert str(snapshot([net, optim, schedule])) == str(before)


def test_mixed_precision_as_an_option():
    def make(amp):
        net = mlp()
        optim = torch.optim.Adam(net.parameters(), lr=1e-2)

        def plain(x, y):
            optim.zero_grad()
            loss = functional.mse_loss(net(x), y)
            loss.backward()
            optim.step()
            return loss

        def cast(x, y):
            optim.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = functional.mse_loss(net(x), y)
            loss.backward()
            optim.step()
            return loss

        return cast if amp else plain, net, optim

    found = []
    for amp in (True, False):
        torch.manual_seed(0)
        step, net, optim = make(amp)
        if not amp:
            step = tg.step(step)
            step.config.enable_amp(dtype=torch.bfloat16)
        torch.manual_seed(1)
        for batch in pairs(8)():
            found.append(snapshot([step(*batch), net, optim]))

    assert [str(one) for one in found[:8]] == [str(one) for one in found[8:]]
    assert len(support.replays(step)) == 1


# --- what it saves --------------------------------------------------------------------------------


def test_a_resumed_run_is_the_uninterrupted_one():
    def after(number: int, train: Any, batches: Any) -> list[str]:
        return [str(snapshot(train(*batch))) for batch in batches[number:]]

    torch.manual_seed(1)
    batches = pairs(12)()
    net, optim, schedule, train = trained()
    for batch in batches[:6]:
        train(*batch)
    file = io.BytesIO()
    torch.save(train.state_dict(), file)
    expected = after(6, train, batches)
    kept = str(snapshot([net, optim, schedule]))

    net, optim, schedule, train = trained()
    torch.rand(3)
    file.seek(0)
    train.load_state_dict(torch.load(file, weights_only=True))

    assert after(6, train, batches) == expected
    assert str(snapshot([net, optim, schedule])) == kept


# --- what it refuses ------------------------------------------------------------------------------


def test_it_takes_no_optimizer():
    _, optim, schedule, train = trained()

    with pytest.raises(NotAnOptimizer, match=r"call optimizer.step\(\) in the function"):
        train.add_optimizer(optim, lr_sch=schedule)


def test_it_takes_no_grad_scaler():
    *_, train = trained()

    with pytest.raises(InvalidOption, match=r"scaler.step\(optimizer\)"):
        train.set_grad_scaler(torch.amp.GradScaler("cpu"))


@pytest.mark.parametrize(
    "wrong",
    [nn.Linear(2, 2), 3, "step", nn.Linear, mlp],
    ids=["module", "number", "text", "class", "no step"],
)
def test_it_takes_functions(wrong):
    if wrong is mlp:
        assert tg.step(wrong)
        return
    with pytest.raises(InvalidOption, match="takes a function"):
        tg.step(wrong)
