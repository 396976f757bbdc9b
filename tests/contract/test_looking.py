"""To look at a step raises nothing and changes nothing, whatever the user's objects are."""

from __future__ import annotations

import random
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from torchgraph.debug.modules import ModuleForest
from torchgraph.errors import NotCompiled, UnknownName

VIEWS = {
    "report": lambda step: str(step.report()),
    "str": str,
    "tree": lambda step: str(step.tree()),
    "full_text": lambda step: step.full_text(),
    "html": lambda step: step._repr_html_(),
    "debug": lambda step: step.debug(0),
    "config": lambda step: repr(step.config),
}


class Raises:
    def _raise(self, *_: object):
        raise RuntimeError("mine")

    __repr__ = __str__ = __eq__ = __bool__ = __len__ = __hash__ = __getattr__ = _raise


class RaisingText(str):
    __slots__ = ()

    def __repr__(self):
        raise RuntimeError("mine")

    __str__ = __repr__


def _gone():
    held = nn.Identity()
    return weakref.proxy(held)


def _training(model, *, reads=lambda: None, optimizer=optim.SGD):
    made = optimizer(model.parameters(), lr=0.1)

    def step(x):
        reads()
        made.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        made.step()
        return loss

    return step


def _attribute(value):
    model = nn.Linear(3, 1)
    vars(model)["odd"] = value

    def reads():
        model.odd  # noqa: B018

    return _training(model, reads=reads)


def _setting(value):
    model = nn.Linear(3, 1)
    made = optim.SGD(model.parameters(), lr=0.1)
    made.param_groups[0]["odd"] = value
    return _training(model, optimizer=lambda parameters, lr: made)


def _closure(value):
    def reads():
        value  # noqa: B018

    return _training(nn.Linear(3, 1), reads=reads)


class Relaid(nn.Module):
    """Its weight has other strides after each call: the first call has no program."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2))

    def forward(self, x):
        self.weight.data = (self.weight.data.t().contiguous() * 1.0).t()
        return x @ self.weight


def _states():
    numpy = np.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), numpy[1].tolist(), numpy[2]


def _look(step):
    """Show a step in all ways; what any of them changed or raised."""
    for name, view in VIEWS.items():
        before = _states()
        view(step)
        assert _states() == before, name


STEPS = {
    "an attribute": lambda: _attribute(Raises()),
    "a closure": lambda: _closure(Raises()),
    "a setting": lambda: _setting(RaisingText("x")),
    "an attribute that is gone": lambda: _attribute(_gone()),
    "a closure that is gone": lambda: _closure(_gone()),
    "a relaid parameter": lambda: _training(Relaid(), optimizer=optim.Adam),
}


@pytest.mark.parametrize("fallback", ["error", "eager"])
@pytest.mark.parametrize("name", STEPS)
def test_no_view_raises(name, fallback, capfd):
    runs = {}
    for graphed in (False, True):
        torch.manual_seed(0)
        step = STEPS[name]()
        if graphed:
            step = tg.step(step)
            step.config.set_backend("aten")
            step.config.set_fallback(fallback)
        losses = runs[graphed] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tg.errors.GraphWarning)
            for number in range(4):
                if graphed:
                    _look(step)
                losses.append(step(torch.full((2, 3), number + 1.0)))
    assert runs[True] == runs[False]
    assert "[ERROR]" not in capfd.readouterr().err


def test_a_report_says_why_there_is_no_program_yet():
    torch.manual_seed(0)
    step = tg.step(_training(Relaid(), optimizer=optim.Adam))
    step.config.set_backend("aten")
    assert "has not been called yet" in step.report().no_program
    with pytest.raises(NotCompiled):
        step.program  # noqa: B018
    step(torch.ones(2, 3))
    assert "stride" in step.report().no_program


def test_after_a_call_that_raised():
    def step(x):
        raise ValueError("mine")

    graph = tg.step(step)
    with pytest.raises(ValueError, match="mine"):
        graph(torch.ones(1))
    _look(graph)


class Draws(nn.Linear):
    def extra_repr(self):
        return f"{torch.randn(3).tolist()} {random.random()} {np.random.rand()}"


class Counts(nn.Linear):
    count = 0

    def extra_repr(self):
        self.count += 1
        self.train(False)
        return f"count={self.count}"


class Writes(nn.Linear):
    def extra_repr(self):
        with torch.no_grad():
            return str(self.weight.add_(1).sum())


class Runs(nn.Sequential):
    def extra_repr(self):
        return str(self[0](torch.ones(1, 3)))


class OwnDraw(nn.Linear):
    generator = torch.Generator()

    def extra_repr(self):
        return str(torch.rand(1, generator=self.generator))


class Breaks(nn.Linear):
    def extra_repr(self):
        raise KeyError("mine")


class Exits(nn.Linear):
    def extra_repr(self):
        raise SystemExit


class Measures(nn.Linear):
    def extra_repr(self):
        found = torch.zeros(1)
        found += self.weight.abs().sum()
        return f"norm={found.item():.2f}"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Draws(3, 1), "Draws(["),
        (lambda: Counts(3, 1), "Counts(count=1)"),
        (lambda: Writes(3, 1), "Writes(extra_repr() writes a tensor)"),
        (lambda: Runs(nn.Linear(3, 1)), "Runs(extra_repr() calls a module)"),
        (lambda: OwnDraw(3, 1), "OwnDraw(extra_repr() draws from a generator)"),
        (lambda: Breaks(3, 1), "Breaks(extra_repr() raises KeyError)"),
        (lambda: Exits(3, 1), "Exits(extra_repr() raises SystemExit)"),
        (lambda: Measures(3, 1), "Measures(norm="),
    ],
)
def test_an_extra_repr_changes_nothing(make, words):
    model, called = make(), []
    for one in model.modules():
        one.register_forward_pre_hook(lambda *_: called.append(1))
    weights = [one.clone() for one in model.parameters()]
    generator, attributes = OwnDraw.generator.get_state(), dict(vars(model))
    step = tg.step(_training(model))
    for _ in range(2):
        _look(step)
    assert words in str(step)
    assert not called
    assert vars(model) == attributes
    assert all(map(torch.equal, weights, model.parameters()))
    assert torch.equal(OwnDraw.generator.get_state(), generator)


def test_modules_are_listed_without_their_own_methods():
    class Hides(nn.Sequential):
        def named_modules(self, memo=None, prefix="", remove_duplicate=True):
            raise RuntimeError("mine")

        named_parameters = named_buffers = named_modules

    shared = nn.Linear(2, 2)
    forest = ModuleForest({"model": Hides(shared, Hides(shared, nn.BatchNorm1d(2)))})
    assert list(forest.entries) == ["model", "model.0", "model.1", "model.1.1"]
    assert forest.place("model.1.0") == "model.0"


class Trainer:
    def __init__(self):
        self.model = nn.Linear(3, 1)
        self.step_of_model = _training(self.model)

    @tg.step
    def step(self, x):
        return self.model(x).mean()


def test_the_step_of_a_class_names_what_to_ask():
    Trainer.step.config.set_backend("aten")
    trainer, x = Trainer(), torch.ones(2, 3)
    assert trainer.step(x) == Trainer.step(trainer, x)
    assert trainer.step.config.options.backend == "aten"
    for ask in ("report", "check", "profile", "state_dict", "program", "tree", "last_lr"):
        with pytest.raises(UnknownName, match=rf"trainer\.step\.{ask}") as caught:
            getattr(Trainer.step, ask)
        assert not hasattr(Trainer.step, ask), caught.value
    assert "step" in str(Trainer.step)
    assert sum(one.count for one in trainer.step.report().calls.eager) == 0


def test_a_function_that_a_class_holds_is_asked_itself():
    class Steps:
        double = tg.step(lambda x: x * 2)

    assert torch.equal(Steps.double(torch.ones(1)), torch.full((1,), 2.0))
    assert Steps.double.report().calls.recorded == 1


def test_a_check_compares_gradients_that_a_step_adds_to():
    torch.manual_seed(0)
    inner, outer = nn.Linear(3, 2), nn.Linear(2, 1)
    optimizer = optim.SGD(inner.parameters(), lr=0.1)

    @tg.step
    def step(x):
        optimizer.zero_grad()
        loss = outer(inner(x)).square().mean()
        loss.backward()  # nobody clears the gradients of `outer`
        optimizer.step()
        return loss

    step.config.set_backend("aten")
    for _ in range(4):
        assert step.check(torch.ones(2, 3)) is None
        step(torch.ones(2, 3))
