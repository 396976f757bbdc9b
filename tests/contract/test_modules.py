"""Modules in build: hooks, overrides, sharing, ties, strangers, attributes read and written."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests.cases.plays import Play, net, sgd, singles
from tests.cases.table import Table
from tests.contract.models import Eval, Function, Net, data
from torchgraph._torch import pytree
from torchgraph.errors import UnregisteredModuleWarning
from torchgraph.testing import counters

case = Table(fallback="eager")


def trained(model: nn.Module, *watched: Any, number: int = 6, **before: Any) -> Play:
    """A loop that minimizes the mean of squares; ``before2=...`` is done before call 2."""
    optimizer = sgd(model)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    changes = {int(name.removeprefix("before")): change for name, change in before.items()}
    return Play(step, [model, optimizer, *watched], changes, singles(number))


def runs(model: Callable[[Any], Any], *watched: Any, number: int = 14, **before: Any) -> Play:
    """A Graph that runs a model and holds only the watched modules."""
    changes = {int(name.removeprefix("before")): change for name, change in before.items()}
    return Play(lambda x: model(x), watched, changes, singles(number))


# --- modules that train ---------------------------------------------------------------------------


@case(forms="graph", least=3)
def with_module_hooks():
    model = Net()
    model.first.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    model.first.register_forward_hook(lambda m, args, out: out + 1)
    model.second.register_full_backward_hook(lambda m, gi, go: (gi[0] * 0.5,))
    model.second.register_full_backward_pre_hook(lambda m, go: (go[0] * 3,))
    return trained(model)


class WithTensorHooks(Net):
    def forward(self, x):
        hidden = self.first(x)
        hidden.register_hook(lambda gradient: gradient * 2)
        return self.second(torch.tanh(hidden))


class _Output:
    """What a module hands to another one, known to torch's trees without names of its parts."""

    def __init__(self, sample):
        self.sample = sample


pytree.register_pytree_node(
    _Output, lambda output: ([output.sample], None), lambda items, _: _Output(*items)
)


class WithOwnClass(nn.Module):
    """As diffusers registers what its models return."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(4, 2), nn.Identity()
        self.inner.register_forward_hook(lambda m, args, out: _Output(out))

    def forward(self, x):
        return self.out(self.inner(x)).sample


class Twice(nn.Module):
    """With a module at two paths."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = self.a
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.b(self.norm(self.a(self.norm(x))))


case.rows(
    {
        "with_tensor_hooks": lambda: trained(WithTensorHooks()),
        "with_norms": lambda: trained(  # which write buffers, and compute weights
            nn.Sequential(
                parametrizations.spectral_norm(nn.Linear(4, 3)),
                parametrizations.weight_norm(nn.Linear(3, 2)),
            )
        ),
        "with_a_class_of_its_own": lambda: trained(WithOwnClass()),
        "a_module_at_two_paths": lambda: trained(Twice()),
    },
    forms="graph",
    least=3,
)


# --- changes between calls ------------------------------------------------------------------------


@case(forms="graph", least=3)
def hooks_added_and_removed():
    model, handles = net(), []
    first, second = model[0].register_forward_hook, model[2].register_forward_pre_hook
    return runs(
        model,
        model,
        before3=lambda: handles.append(first(lambda m, args, out: out * 2)),
        before6=lambda: handles.append(second(lambda m, args: (args[0] + 1,))),
        before9=lambda: handles.pop(0).remove(),
        before11=lambda: handles.pop(0).remove(),
    )


@case(forms="graph", least=3)
def a_mode_of_an_unregistered_module():
    """A module without parameters needs no warning, and is guarded all the same."""
    model = nn.Dropout(0.5)
    return runs(model, before5=model.eval)


@case(forms="graph", least=2, says="Sequential is called in a nn.Graph")
def what_an_unregistered_module_holds_may_change():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    play = runs(
        model,
        number=20,
        before4=lambda: setattr(model[0], "weight", nn.Parameter(torch.ones(4, 4))),
        before8=lambda: model.__setitem__(1, nn.ReLU()),
        before12=lambda: model[0].register_forward_hook(lambda m, args, out: out * 2),
        before16=model.double,
    )
    play.calls = [(x.double() if n >= 16 else x,) for n, (x,) in enumerate(play.calls)]
    return play


@case(forms="graph", least=5)
def closures_are_read_by_reference():
    scale = torch.ones(4)
    return runs(
        lambda x: x * scale,
        number=12,
        before4=lambda: scale.fill_(3.0),
        before6=lambda: setattr(scale, "data", torch.tensor(2.0)),
        before9=lambda: setattr(scale, "data", torch.full((5, 1), 3.0, dtype=torch.float64)),
    )


@case(forms="graph", least=2)
def a_module_that_build_makes():
    return runs(lambda x: nn.Flatten(0)(x), number=5)


@pytest.mark.parametrize("case", case)
def test_modules(case):
    case.check()


def test_self_in_forward_is_the_users_module():
    """OneFlow: a proxy."""
    seen = []

    class SpotChecks(nn.Linear):
        def forward(self, x):
            seen.append((self, type(self), isinstance(self, nn.Linear)))
            return super().forward(x)

    model = SpotChecks(4, 2)
    Eval(model)(*data())
    assert seen[0] == (model, SpotChecks, True)
    assert seen[0][0] is model


def test_an_unregistered_module_warns_once_and_is_read_by_reference():
    hidden = nn.Linear(4, 4)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        graph = Function(lambda x: hidden(hidden(x)))
        for _ in range(3):
            graph(*data())
    assert [w.category for w in found] == [UnregisteredModuleWarning]
    assert "Linear" in str(found[0].message)
    assert found[0].filename == __file__
    with torch.no_grad():
        hidden.weight.mul_(2)
    with counters.expect(captures=0):
        assert torch.equal(graph(*data()), hidden(hidden(*data())))
    assert type(hidden.weight) is nn.Parameter
