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
    adam,
    data,
    eager,
    made,
    same,
    snapshot,
)
from torchgraph.errors import (
    AttributeReadAndWritten,
    AttributeWriteWarning,
    UnregisteredModuleWarning,
)
from torchgraph.testing import counters


def assert_trains_like_eager(make, steps=4):
    """``make()`` gives a model; twice, equal ones."""
    torch.manual_seed(0)
    model = make()
    torch.manual_seed(0)
    twin = make()
    optimizer, other = adam(model), adam(twin)
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
    graph(x)
    handle = model.first.register_forward_hook(lambda m, args, out: out * 2)
    assert torch.equal(graph(x), model(x))
    other = model.second.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    assert torch.equal(graph(x), model(x))
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


def test_one_module_as_two_attributes_of_the_graph():
    model = nn.Linear(4, 4)

    class Both(tg.Graph):
        def __init__(self):
            super().__init__()
            self.one = model
            self.two = model

        def build(self, x):
            return self.two(self.one(x))

    graph = Both()
    assert torch.equal(graph(*data()), model(model(*data())))
    assert set(graph.state_dict()) == {"one", "two", "_train"}


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
    graph(torch.ones(50))
    hidden.eval()
    assert torch.equal(graph(torch.ones(50)), torch.ones(50))


def test_what_an_unregistered_module_holds_may_change():
    hidden = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    graph = Function(lambda x: hidden(x))
    x = data()[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnregisteredModuleWarning)
        assert torch.equal(graph(x), hidden(x))
        hidden[0].weight = nn.Parameter(torch.ones(4, 4))
        assert torch.equal(graph(x), hidden(x))
        hidden[1] = nn.ReLU()
        assert torch.equal(graph(x), hidden(x))
        hidden[0].register_forward_hook(lambda m, args, out: out * 2)
        assert torch.equal(graph(x), hidden(x))
        hidden.double()
        assert torch.equal(graph(x.double()), hidden(x.double()))


def test_closures_are_read_by_reference():
    scale = torch.ones(4)
    graph = Function(lambda x: x * scale)
    x = data()[0]
    assert torch.equal(graph(x), x)
    scale.fill_(3.0)
    with counters.expect(captures=0):
        assert torch.equal(graph(x), x * 3)


def test_a_closure_given_other_data_in_place():
    scale = torch.ones(4)
    graph = Function(lambda x: x * scale)
    x = data()[0]
    graph(x)
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


def test_a_tensor_attribute_that_is_no_buffer_is_read_by_reference_and_replaced():
    model = nn.Identity()
    model.scale = torch.full((4,), 2.0)
    graph = Function(lambda x: x * model.scale, model=model)
    x = data()[0]
    assert torch.equal(graph(x), x * 2)
    model.scale.fill_(3.0)
    assert torch.equal(graph(x), x * 3)
    model.scale = torch.full((4,), 4.0)
    assert torch.equal(graph(x), x * 4)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (2, 3),
        (2.0, 3.0),
        (True, False),
        ("relu", "tanh"),
        (None, 1),
        ((1, 2), (1, 3)),
        (torch.float32, torch.float64),
        (2, 2.0),
        (1, True),
        (0.0, -0.0),
        (torch.tanh, torch.relu),
        (nn.functional.silu, nn.functional.gelu),
    ],
    ids=str,
)
def test_an_attribute_that_build_read_changes(old, new):
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.value = old

        def forward(self, x):
            return x * 2 if repr(self.value) == repr(old) else x * 3

    model = Reads()
    graph = Eval(model)
    x = data()[0]
    assert torch.equal(graph(x), x * 2)
    model.value = new
    assert torch.equal(graph(x), x * 3)
    model.value = old
    with counters.expect(captures=0):
        assert torch.equal(graph(x), x * 2)


def test_an_attribute_of_the_graph_that_build_read_changes():
    class Scaled(tg.Graph):
        def __init__(self):
            super().__init__()
            self.scale = 2

        def build(self, x):
            return x * self.scale

    graph = Scaled()
    x = data()[0]
    assert torch.equal(graph(x), x * 2)
    graph.scale = 5
    assert torch.equal(graph(x), x * 5)


def test_a_class_attribute_that_build_read_changes():
    class Classy(nn.Module):
        scale = 2

        def forward(self, x):
            return x * self.scale

    model = Classy()
    graph = Eval(model)
    x = data()[0]
    assert torch.equal(graph(x), x * 2)
    model.scale = 3  # now an attribute of the instance
    assert torch.equal(graph(x), x * 3)
    del model.scale
    assert torch.equal(graph(x), x * 2)
    Classy.scale = 4
    assert torch.equal(graph(x), x * 4)


def test_an_attribute_read_by_getattr_or_hasattr():
    class Optional(nn.Module):
        def forward(self, x):
            return x * getattr(self, "extra", 2)

    model = Optional()
    graph = Eval(model)
    x = data()[0]
    assert torch.equal(graph(x), x * 2)
    model.extra = 3
    assert torch.equal(graph(x), x * 3)


def test_dropout_probability_and_batchnorm_momentum_changed():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5))
    graph = Eval(model)
    x = data()[0]
    graph(x)
    model[0].momentum, model[1].p = 0.5, 0.0
    twin = nn.BatchNorm1d(4, momentum=0.5)
    twin.load_state_dict(model[0].state_dict())
    assert torch.equal(graph(x), twin(x))
    assert torch.equal(model[0].running_mean, twin.running_mean)


def test_an_attribute_not_read_costs_no_capture():
    model, _ = made()
    model.label = "one"
    graph = Eval(model.eval())
    with counters.expect(captures=1):
        graph(*data())
        model.label = "two"
        graph(*data())


def test_an_attribute_written_is_put_back_with_one_warning():
    class Caches(nn.Linear):
        def forward(self, x):
            self.last = super().forward(x)  # here
            return self.last * 1

    model = Caches(4, 2)
    model.last = "before"
    graph = Eval(model)
    with pytest.warns(AttributeWriteWarning, match=r"(?s)model\.last.*# here") as found:
        got = graph(*data())
    assert len(found) == 1
    assert model.last == "before"
    assert torch.equal(got, nn.functional.linear(*data(), model.weight, model.bias))
    assert torch.equal(graph(*data()), got)  # and no second warning


def test_a_new_attribute_written_disappears_again():
    class Caches(nn.Module):
        def forward(self, x):
            self.shape_seen = x.shape[0]
            return x + 1

    model = Caches()
    with pytest.warns(AttributeWriteWarning, match=r"model\.shape_seen"):
        Eval(model)(*data())
    assert not hasattr(model, "shape_seen")


def test_an_attribute_read_and_written_is_an_error_with_the_line():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1  # here
            return x * self.calls

    model = Counts()
    graph = Eval(model)
    with pytest.raises(AttributeReadAndWritten, match=r"(?s)model\.calls.*test_modules.*# here"):
        graph(*data())
    assert model.calls == 0


def test_a_list_filled_in_build_is_put_back():
    class Collects(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = []

        def forward(self, x):
            self.seen.append(x)
            return x + len(self.seen)

    model = Collects()
    graph = Eval(model)
    x = data()[0]
    with pytest.warns(AttributeWriteWarning, match=r"model\.seen"):
        assert torch.equal(graph(x), x + 1)
    assert model.seen == []


def test_an_attribute_of_the_graph_written_in_build():
    class Notes(tg.Graph):
        def build(self, x):
            self.note = x.shape
            return x + 1

    graph = Notes()
    with pytest.warns(AttributeWriteWarning, match="note"):
        graph(*data())
    assert not hasattr(graph, "note")


def test_writing_the_value_that_is_there_already_is_nothing():
    class Same(nn.Module):
        def __init__(self):
            super().__init__()
            self.mode = "fast"

        def forward(self, x):
            self.mode = "fast"
            return x + 1

    Eval(Same())(*data())


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
