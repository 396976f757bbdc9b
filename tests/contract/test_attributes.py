"""Attributes that build reads are noticed when they change; recorded calls alone write any."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from tests.contract.models import Eval, Function, data, made
from tests.support import by_name, settle
from torchgraph.errors import AttributeReadAndWritten, AttributeWriteWarning, MovingConstant
from torchgraph.testing import counters


class Pair(NamedTuple):
    """A container that is no plain tuple."""

    left: float
    right: Any


def test_a_tensor_attribute_that_is_no_buffer_is_read_by_reference_and_replaced():
    model = nn.Identity()
    model.scale = torch.full((4,), 2.0)
    graph = Function(lambda x: x * model.scale, model=model)
    x = data()[0]
    assert torch.equal(settle(graph, x), x * 2)
    model.scale.fill_(3.0)
    assert torch.equal(graph(x), x * 3)
    model.scale = torch.full((4,), 4.0)
    assert torch.equal(graph(x), x * 4)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("relu", "tanh"),
        (None, 1),
        (torch.float32, torch.float64),
        (2, 2.0),
        (1, True),
        (0.0, -0.0),
        (torch.tanh, torch.relu),
        (np.float32(0.0), np.float32(-0.0)),
        (np.int64(2), np.int64(3)),
        (np.arange(3.0), np.ones(3)),
        ({"w": 1.0}, {"w": 2.0}),
        ({"w": 1.0, "v": 1}, {"v": 1, "w": 1.0}),
        ({1}, {2}),
        (Pair(1.0, [2.0]), Pair(1.0, [3.0])),
        (SimpleNamespace(w=1.0), SimpleNamespace(w=2.0)),
        pytest.param([torch.tanh], [torch.relu], id="functions"),
    ],
    ids=by_name,
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
    assert torch.equal(settle(graph, x), x * 2)
    model.value = new
    assert torch.equal(graph(x), x * 3)
    model.value = old
    with counters.expect(captures=0):
        assert torch.equal(settle(graph, x), x * 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.arange(3.0),
        lambda: {"w": [1.0], "v": None},
        lambda: Pair(1.0, [2.0]),
    ],
)
def test_an_equal_value_is_no_change(make):
    model = nn.Identity()
    model.value = make()
    graph = Function(lambda x: x * len(repr(model.value)), model=model)
    settle(graph, *data())
    with counters.expect(captures=0, replays=3):
        for x in data(3):
            model.value = make()
            graph(x)


def test_a_list_that_the_step_makes_of_itself_stays_in_eager():
    """A log that grows in place is no guard."""
    model = nn.Identity()
    model.log = []

    def step(x):
        model.log = [*model.log, 1]
        return x * 2

    graph = Function(step, model=model)
    with pytest.warns(AttributeReadAndWritten, match=r"model\.log"):
        got = [graph(x) for x in data(8)]
    assert all(map(torch.equal, got, [x * 2 for x in data(8)]))
    assert model.log == [1] * 8


def test_a_class_attribute_that_build_read_changes():
    class Classy(nn.Module):
        scale = 2

        def forward(self, x):
            return x * self.scale

    model = Classy()
    graph = Eval(model)
    x = data()[0]
    assert torch.equal(settle(graph, x), x * 2)
    model.scale = 3  # now an attribute of the instance
    assert torch.equal(graph(x), x * 3)
    del model.scale
    assert torch.equal(settle(graph, x), x * 2)
    Classy.scale = 4
    assert torch.equal(graph(x), x * 4)


def test_an_attribute_read_by_getattr_or_hasattr():
    class Optional(nn.Module):
        def forward(self, x):
            return x * getattr(self, "extra", 2)

    model = Optional()
    graph = Eval(model)
    x = data()[0]
    assert torch.equal(settle(graph, x), x * 2)
    model.extra = 3
    assert torch.equal(graph(x), x * 3)


def test_dropout_probability_and_batchnorm_momentum_changed():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5))
    graph = Eval(model)
    x = data()[0]
    settle(graph, x)
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
        settle(graph, *data())
    model.label = "two"
    with counters.expect(captures=0, replays=1):
        graph(*data())


def test_an_attribute_written_is_left_by_recorded_calls_with_one_warning():
    class Caches(nn.Linear):
        def forward(self, x):
            self.last = super().forward(x)  # here
            return self.last * 1

    model = Caches(4, 2)
    model.last = "before"
    graph = Eval(model)
    graph.config.set_look_again("off")  # or it is left by those that are looked at, too
    batches = data(4)
    with pytest.warns(AttributeWriteWarning, match=r"(?s)model\.last.*# here") as found:
        got = [graph(x) for x in batches]
    assert len(found) == 1
    expected = [nn.functional.linear(x, model.weight, model.bias) for x in batches]
    assert all(map(torch.equal, got, expected))
    assert torch.equal(model.last, expected[1])  # the second call is the last that records


def test_a_new_attribute_written_stays():
    class Caches(nn.Module):
        def forward(self, x):
            self.shape_seen = x.shape[0]
            return x + 1

    model = Caches()
    graph = Eval(model)
    graph(*data())
    assert model.shape_seen == 5
    settle(graph, *data())
    model.shape_seen = "the user's"
    graph(*data())
    assert model.shape_seen == 5


def test_an_attribute_that_settles_is_a_cache():
    class Caches(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = None

        def forward(self, x):
            if self.table is None:
                self.table = torch.arange(4.0)
            return x * self.table

    model = Caches()
    graph = Eval(model)
    for x in data(5):
        assert torch.equal(graph(x), x * torch.arange(4.0))
    with counters.expect(captures=0, replays=1):
        graph(x)
    model.table = torch.ones(4)
    assert torch.equal(graph(x), x)


def test_an_attribute_that_moves_is_said_once_with_the_line():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = ""

        def forward(self, x):
            self.calls += "1"  # here
            return x * len(self.calls)

    model = Counts()
    graph = Eval(model)
    x = data()[0]
    words = r"(?s)calls was '1+' and is '1+'.*test_attr.*# here.*Fix: keep the state in a tensor"
    with pytest.warns(AttributeReadAndWritten, match=words) as found:
        got = [graph(x) for _ in range(8)]
    assert all(torch.equal(y, x * number) for number, y in enumerate(got, start=1))
    assert len(found) == 1
    assert model.calls == 8 * "1"


def test_a_counter_of_a_module_that_nothing_reads_counts_on():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x * 2

    model = Counts()
    graph = Eval(model)
    with counters.expect(captures=1, replays=6):
        for number, x in enumerate(data(8), start=1):
            assert torch.equal(graph(x), x * 2)
            assert model.calls == number
    model.calls = 100
    graph(*data())
    assert model.calls == 101


def test_a_list_that_grows_is_said_at_the_third_call():
    class Collects(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = []

        def forward(self, x):
            self.seen.append(x)
            return x + len(self.seen)  # here

    model = Collects()
    graph = Eval(model)
    x = data()[0]
    for number in range(1, 3):
        assert torch.equal(graph(x), x + number)
    with pytest.warns(MovingConstant, match=r"was 2 and is 3(?s:.*)# here"):
        assert torch.equal(graph(x), x + 3)
    for number in range(4, 9):
        assert torch.equal(graph(x), x + number)


def test_an_attribute_written_by_a_call_that_fails_is_put_back():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen, self.calls = [], 0

        def forward(self, x):
            self.seen.append(x)
            self.calls, self.new = self.calls + 1, 1
            raise KeyError("mine")

    model = Writes()
    with pytest.raises(KeyError, match="mine"):
        Eval(model)(*data())
    assert (model.seen, model.calls, hasattr(model, "new")) == ([], 0, False)
