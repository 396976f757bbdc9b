"""``tg.step``: what it can be put on, what it shows, saves and refuses."""

from __future__ import annotations

import contextlib
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
from tests.cases import plays
from tests.cases.plays import Play, net
from tests.cases.table import Table
from tests.contract.loops import mlp, pairs, snapshot
from torchgraph.counters import counters
from torchgraph.errors import InvalidOption, NotAnOptimizer

case = Table(fallback="eager")


# --- what it is put on ----------------------------------------------------------------------------

model = mlp()
optimizer = torch.optim.Adam(model.parameters())


def train_globals(x, y):
    optimizer.zero_grad()
    loss = functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


@case(served=7)
def a_function_that_names_globals():
    global model, optimizer
    model = net()
    optimizer = plays.adam(model)
    return Play(train_globals, [model, optimizer])


def train(model, optimizer, x, y, scale=1.0):
    optimizer.zero_grad()
    loss = functional.mse_loss(model(x), y) * scale
    loss.backward()
    optimizer.step()
    return loss


@case(served=7)
def a_partial():
    model = net()
    optimizer = plays.adam(model)
    return Play(functools.partial(train, model, optimizer, scale=2.0), [model, optimizer])


@case(served=6)
def an_optimizer_that_no_look_finds():
    """An optimizer too deep for a look: the call that steps it is eager's, then it is known."""
    model = net()
    deep = {"a": {"b": {"c": {"d": {"e": plays.adam(model)}}}}}

    def step(x, y):
        loss = functional.mse_loss(model(x), y)
        model.zero_grad()
        loss.backward()
        deep["a"]["b"]["c"]["d"]["e"].step()
        return loss

    return Play(step, [model, deep])


@pytest.mark.parametrize("case", case)
def test_functions(case):
    case.check()


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

    def __init__(self, rate: float = 0.1) -> None:
        self.model = mlp()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=rate)
        self.scale = rate

    def plain(self, x, y):
        return train(self.model, self.optimizer, x, y, self.scale)

    step = tg.step(plain)

    def run(self, count: int = 5) -> Trainer:
        for batch in pairs(count)():
            self.step(*batch)
        return self


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
    gone = weakref.ref(Trainer().run().model[0].weight)
    gc.collect()

    assert gone() is None


def test_a_copy_of_an_object_has_a_step_of_its_own():
    trainer = Trainer().run()
    other = copy.deepcopy(trainer)
    before = snapshot(trainer.model)
    other.run()

    assert other.step is not trainer.step
    assert str(snapshot(trainer.model)) == str(before)
    assert str(snapshot(other.model)) != str(before)


def test_a_shallow_copy_of_an_object_has_a_step_of_its_own():
    trainer = Trainer().run()
    other = copy.copy(trainer)
    other.model, trainer.model = copy.deepcopy(trainer.model), trainer.model
    other.optimizer = torch.optim.SGD(other.model.parameters(), lr=0.1)
    before = snapshot(trainer.model)
    other.run()

    assert other.step is not trainer.step
    assert trainer.step is trainer.step
    assert str(snapshot(trainer.model)) == str(before)
    assert str(snapshot(other.model)) != str(before)


def test_an_override_calls_the_step_of_its_base():
    class Loud(Trainer):
        calls = 0

        def step(self, x, y):
            self.calls += 1
            return super().step(x, y)

    assert Loud().run().calls == 5


def test_an_object_without_a_dict():
    class Slotted:
        __slots__ = ("model",)

        @tg.step
        def step(self, x):
            return x

    with pytest.raises(InvalidOption, match="__slots__"):
        Slotted().step(torch.ones(1))


# --- what it shows and saves ----------------------------------------------------------------------


def trained() -> tuple[list[Any], Any]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optim = torch.optim.Adam(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optim, 0.9)

    @tg.step
    def step(x, y):
        loss = train(net, optim, x, y)
        schedule.step()
        return loss

    return [net, optim, schedule], step


def test_a_check_finds_nothing_and_changes_nothing():
    parts, step = trained()
    batches = pairs(6)()
    for batch in batches[:4]:
        step(*batch)
    parts[1].zero_grad()
    before = snapshot(parts)

    assert step.check(*batches[4]) is None
    assert str(snapshot(parts)) == str(before)


def test_mixed_precision_as_an_option():
    def run(amp):
        torch.manual_seed(0)
        net = mlp()
        optim = torch.optim.Adam(net.parameters(), lr=1e-2)

        def step(x, y):
            optim.zero_grad()
            with torch.autocast("cpu", torch.bfloat16) if amp else contextlib.nullcontext():
                loss = functional.mse_loss(net(x), y)
            loss.backward()
            optim.step()
            return loss

        if not amp:
            step = tg.step(step)
            step.config.enable_amp(dtype=torch.bfloat16)
        torch.manual_seed(1)
        return step, [str(snapshot([step(*batch), net, optim])) for batch in pairs(8)()]

    step, found = run(False)
    assert found == run(True)[1]
    assert len(support.replays(step)) == 1


def test_a_resumed_run_is_the_uninterrupted_one():
    def rest() -> list[str]:
        return [str(snapshot(step(*batch))) for batch in batches[6:]]

    torch.manual_seed(1)
    batches = pairs(12)()
    parts, step = trained()
    for batch in batches[:6]:
        step(*batch)
    file = io.BytesIO()
    torch.save(step.state_dict(), file)
    expected, kept = rest(), str(snapshot(parts))

    parts, step = trained()
    torch.rand(3)
    file.seek(0)
    step.load_state_dict(torch.load(file, weights_only=True))

    assert rest() == expected
    assert str(snapshot(parts)) == kept


# --- what it refuses ------------------------------------------------------------------------------


def test_it_takes_no_optimizer_and_no_grad_scaler():
    parts, step = trained()

    with pytest.raises(NotAnOptimizer, match=r"call optimizer.step\(\) in the function"):
        step.add_optimizer(parts[1], lr_sch=parts[2])
    with pytest.raises(InvalidOption, match=r"scaler.step\(optimizer\)"):
        step.set_grad_scaler(torch.amp.GradScaler("cpu"))


@pytest.mark.parametrize(
    "wrong", [nn.Linear(2, 2), 3, "step", nn.Linear], ids=["module", "number", "text", "class"]
)
def test_it_takes_functions(wrong):
    assert tg.step(mlp)
    with pytest.raises(InvalidOption, match="takes a function"):
        tg.step(wrong)
