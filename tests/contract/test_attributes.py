"""Attributes that build reads are noticed when they change; those that it writes are put back."""

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.contract.models import Eval, Function, data, made
from torchgraph.errors import AttributeReadAndWritten, AttributeWriteWarning
from torchgraph.testing import counters


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
    with pytest.raises(AttributeReadAndWritten, match=r"(?s)model\.calls.*test_attributes.*# here"):
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
