"""Modules in build: hooks, overrides, sharing, ties, strangers, attributes read and written."""

import functools
import warnings

import pytest
import torch
from torch import nn

from tests.contract.models import (
    Eval,
    Function,
    Net,
    beside_eager,
    data,
    made,
)
from tests.support import settle
from torchgraph._torch import pytree
from torchgraph.errors import UnregisteredModuleWarning
from torchgraph.testing import counters


def with_module_hooks():
    model = Net()
    model.first.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    model.first.register_forward_hook(lambda m, args, out: out + 1)
    model.second.register_full_backward_hook(lambda m, gi, go: (gi[0] * 0.5,))
    model.second.register_full_backward_pre_hook(lambda m, go: (go[0] * 3,))
    return model


class WithTensorHooks(Net):
    def forward(self, x):
        hidden = self.first(x)
        hidden.register_hook(lambda gradient: gradient * 2)
        return self.second(torch.tanh(hidden))


class SpectrallyNormed(nn.Sequential):
    """Writes buffers of its own, and computes its other weight from two."""

    def __init__(self):
        norms = nn.utils.parametrizations
        super().__init__(norms.spectral_norm(nn.Linear(4, 3)), norms.weight_norm(nn.Linear(3, 2)))


class _Output:
    """What a module hands to another one, known to torch's trees without names of its parts."""

    def __init__(self, sample):
        self.sample = sample


pytree.register_pytree_node(
    _Output, lambda output: ([output.sample], None), lambda items, _: _Output(*items)
)


class Inner(nn.Linear):
    def forward(self, x):
        return _Output(super().forward(x))


class WithOwnClass(nn.Module):
    """As diffusers registers what its models return."""

    def __init__(self):
        super().__init__()
        self.inner = Inner(4, 2)

    def forward(self, x):
        return self.inner(x).sample


@pytest.mark.parametrize(
    "make", [with_module_hooks, WithTensorHooks, SpectrallyNormed, WithOwnClass]
)
def test_modules_train_like_eager(make):
    done = beside_eager(make=make)
    assert done.replayed >= 3


def test_a_hook_added_or_removed_between_calls_is_noticed():
    model, _ = made()
    model.eval()
    graph = Eval(model)
    x = data()[0]
    settle(graph, x)
    handle = model.first.register_forward_hook(lambda m, args, out: out * 2)
    assert torch.equal(settle(graph, x), model(x))
    other = model.second.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    assert torch.equal(settle(graph, x), model(x))
    handle.remove()
    other.remove()
    assert torch.equal(graph(x), model(x))


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_parameter_hook_added_or_removed_between_calls_is_noticed(kind):
    handles = []

    def halve(tensor):
        if kind == "register_hook":
            return tensor * 0.5
        tensor.grad.mul_(0.5)
        return None

    def before(number, model, _optimizer):
        if number in (0, 4):
            handles.append(getattr(model.first.weight, kind)(halve))
        if number in (2, 7):
            handles.pop().remove()

    beside_eager(
        batches=data(9),
        before=before,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    )


def test_tied_weights():
    def make():
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        model[2].weight = model[0].weight
        return model

    model = beside_eager(make=make).model
    assert model[0].weight is model[2].weight


def test_a_module_shared_at_two_paths():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.b = self.a
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            return self.b(self.norm(self.a(self.norm(x))))

    assert beside_eager(make=Twice).model.norm.num_batches_tracked.item() == 12


def test_call_overrides_and_patched_forwards_run():
    class Loud(nn.Linear):
        def __call__(self, x):
            return super().__call__(x) * 2

    model = nn.Sequential(Loud(4, 4), nn.Linear(4, 2))
    graph = Eval(model)
    x = data()[0]
    assert torch.equal(graph(x), model(x))

    linear = model[1]
    plain = linear.forward
    linear.forward = lambda x: plain(x) + 1
    assert torch.equal(graph(x), model(x))
    linear.forward = functools.partial(lambda y, x: plain(x) + y, 2)
    assert torch.equal(graph(x), model(x))
    del linear.forward
    assert torch.equal(graph(x), model(x))


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


def test_a_tie_made_or_cut_between_calls():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    graph = Eval(model)
    x = data()[0]
    graph(x)
    own = model[1].weight
    model[1].weight = model[0].weight
    assert torch.equal(graph(x), model(x))
    model[1].weight = own
    assert torch.equal(graph(x), model(x))


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


def test_a_mode_toggle_of_an_unregistered_module():
    """A module without parameters needs no warning, and is guarded all the same."""
    hidden = nn.Dropout(0.5)
    graph = Function(lambda x: hidden(x))
    settle(graph, torch.ones(50))
    hidden.eval()
    assert torch.equal(graph(torch.ones(50)), torch.ones(50))


def test_what_an_unregistered_module_holds_may_change():
    hidden = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    graph = Function(lambda x: hidden(x))
    x = data()[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnregisteredModuleWarning)
        assert torch.equal(settle(graph, x), hidden(x))
        hidden[0].weight = nn.Parameter(torch.ones(4, 4))
        assert torch.equal(settle(graph, x), hidden(x))
        hidden[1] = nn.ReLU()
        assert torch.equal(settle(graph, x), hidden(x))
        hidden[0].register_forward_hook(lambda m, args, out: out * 2)
        assert torch.equal(settle(graph, x), hidden(x))
        hidden.double()
        assert torch.equal(settle(graph, x.double()), hidden(x.double()))


def test_closures_are_read_by_reference():
    scale = torch.ones(4)
    graph = Function(lambda x: x * scale)
    x = data()[0]
    assert torch.equal(settle(graph, x), x)
    scale.fill_(3.0)
    with counters.expect(captures=0, replays=1):
        assert torch.equal(graph(x), x * 3)


def test_a_closure_given_other_data_in_place():
    scale = torch.ones(4)
    graph = Function(lambda x: x * scale)
    x = data()[0]
    settle(graph, x)
    scale.data = torch.tensor(2.0)
    assert torch.equal(graph(x), x * 2)
    scale.data = torch.full((5, 1), 3.0, dtype=torch.float64)
    assert torch.equal(graph(x), x * scale)


def test_a_closure_written_in_build_changes():
    """Eager: the tensor changes at each call. OneFlow: it stays."""
    total = torch.zeros(())
    graph = Function(lambda x: (total.add_(x.sum()), x)[1])
    for _ in range(3):
        graph(torch.ones(2))
    assert total.item() == 6


def test_a_module_that_build_makes_is_no_unregistered_one():
    graph = Function(lambda x: nn.Flatten(0)(x))
    for _ in range(2):
        assert graph(*data()).shape == (20,)
