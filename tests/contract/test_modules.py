"""Modules in build: hooks, overrides, sharing, ties, strangers, attributes read and written."""

import functools
import warnings

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.contract.models import (
    Eval,
    Function,
    Net,
    Train,
    data,
    eager,
    made,
    same,
    snapshot,
    twins,
)
from tests.support import settle
from torchgraph._torch import pytree
from torchgraph.errors import UnregisteredModuleWarning
from torchgraph.testing import counters


def assert_trains_like_eager(make, steps=4):
    """``make()`` gives a model; twice, equal ones."""
    (model, optimizer), (twin, other) = twins(make)
    graph = Train(model, optimizer)
    torch.manual_seed(1)
    expected = [eager(twin, other, x) for x in data(steps)]
    torch.manual_seed(1)
    assert same([graph(x) for x in data(steps)], expected)
    assert same(snapshot(model, optimizer)[1:], snapshot(twin, other)[1:])
    return model, graph


def test_module_hooks_run():
    def make():
        model = Net()
        model.first.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        model.first.register_forward_hook(lambda m, args, out: out + 1)
        model.second.register_full_backward_hook(lambda m, gi, go: (gi[0] * 0.5,))
        model.second.register_full_backward_pre_hook(lambda m, go: (go[0] * 3,))
        return model

    assert_trains_like_eager(make)


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


def test_tensor_hooks_run():
    class Hooked(Net):
        def forward(self, x):
            hidden = self.first(x)
            hidden.register_hook(lambda gradient: gradient * 2)
            return self.second(torch.tanh(hidden))

    assert_trains_like_eager(Hooked)


def test_parameter_hooks_run():
    def make():
        model = Net()
        model.first.weight.register_hook(lambda gradient: gradient * 0.1)
        return model

    assert_trains_like_eager(make)


def test_post_accumulate_hooks_run():
    def scale(parameter):
        parameter.grad = parameter.grad * 0.1

    def make():
        model = Net()
        model.first.weight.register_post_accumulate_grad_hook(scale)
        return model

    assert_trains_like_eager(make)


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_parameter_hook_added_or_removed_between_calls_is_noticed(kind):
    def halve(tensor):
        if kind == "register_hook":
            return tensor * 0.5
        tensor.grad.mul_(0.5)
        return None

    (model, _), (twin, _) = made(), made()
    optimizer, other = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin))
    graph = Train(model, optimizer)
    torch.manual_seed(1)
    expected = []
    for number, x in enumerate(data(6)):
        if number == 2:
            handle = getattr(twin.first.weight, kind)(halve)
        if number == 4:
            handle.remove()
        expected.append(eager(twin, other, x))
    torch.manual_seed(1)
    for number, x in enumerate(data(6)):
        if number == 2:
            handle = getattr(model.first.weight, kind)(halve)
        if number == 4:
            handle.remove()
        assert torch.equal(graph(x), expected[number])
    assert same(model.state_dict(), twin.state_dict())


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


def test_forward_called_directly_and_other_methods():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

        def encode(self, x):
            return self.a.forward(x)

    model = Encoder()
    graph = Function(lambda x: model.b(model.encode(x)), model=model)
    x = data()[0]
    assert torch.equal(graph(x), model.b(model.a(x)))


def test_self_in_forward_is_the_users_module():
    """OneFlow: a proxy."""
    seen = []

    class Looks(nn.Linear):
        def forward(self, x):
            seen.append((self, type(self), isinstance(self, nn.Linear)))
            return super().forward(x)

    model = Looks(4, 2)
    Eval(model)(*data())
    assert seen[0] == (model, Looks, True)
    assert seen[0][0] is model


def test_tied_weights():
    def make():
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        model[2].weight = model[0].weight
        return model

    model, _ = assert_trains_like_eager(make)
    assert model[0].weight is model[2].weight


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


def test_a_module_shared_at_two_paths():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.b = self.a
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            return self.b(self.norm(self.a(self.norm(x))))

    model, _ = assert_trains_like_eager(Twice)
    assert model.norm.num_batches_tracked.item() == 8


def test_views_of_parameters():
    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.flat = nn.Parameter(torch.randn(20))

        def forward(self, x):
            first, second = self.flat[:16].view(4, 4), self.flat[16:]
            return torch.tanh(x @ first) + second

    assert_trains_like_eager(Views)


def test_parametrizations_and_weight_norm():
    def make():
        return nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))

    assert_trains_like_eager(make)


def test_spectral_norm_writes_its_buffers():
    def make():
        return nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))

    assert_trains_like_eager(make)


def test_containers_of_modules_and_parameters():
    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
            self.named = nn.ModuleDict({"act": nn.Tanh()})
            self.scales = nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(3)])

        def forward(self, x):
            for layer, scale in zip(self.layers, self.scales, strict=True):
                x = self.named["act"](layer(x)) * scale
            return x

    assert_trains_like_eager(Many)


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


def test_modules_hidden_in_a_list_are_unregistered():
    class Listed(tg.Graph):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Linear(4, 4)]

        def build(self, x):
            return self.layers[0](x)

    graph = Listed()
    with pytest.warns(UnregisteredModuleWarning):
        got = graph(*data())
    assert torch.equal(got, graph.layers[0](*data()))


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


def test_a_model_on_several_graphs():
    model, _ = made()
    graphs = [Eval(model.eval()) for _ in range(3)]
    outs = [graph(*data()) for graph in graphs]
    assert same(outs[0], outs[1])
    assert same(outs[0], outs[2])


def test_the_module_is_usable_in_eager_during_the_life_of_the_graph():
    model, optimizer = made()
    graph = Train(model, optimizer)
    graph(*data())
    model.eval()
    out = model(*data())
    out.sum().backward()
    assert model.first.weight.grad is not None
    optimizer.zero_grad()
    assert isinstance(model.first, nn.Linear)
    assert nn.Module.__call__.__module__.startswith("torch")


class _Output:
    """What a module hands to another one, known to torch's trees without names of its parts."""

    def __init__(self, sample):
        self.sample = sample


def test_a_class_that_trees_know_without_names_passes_between_modules():
    """As diffusers registers what its models return."""

    class Inner(nn.Linear):
        def forward(self, x):
            return _Output(super().forward(x))

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner(4, 2)

        def forward(self, x):
            return self.inner(x).sample

    pytree.register_pytree_node(
        _Output, lambda output: ([output.sample], None), lambda items, _: _Output(*items)
    )
    assert_trains_like_eager(Outer)
