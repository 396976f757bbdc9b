"""Arguments of a call: any tree, bound by path, part of the signature, written when mutated."""

import collections
import dataclasses
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.contract.models import Function, Train, data, made
from torchgraph.errors import CaptureError, UnsupportedInput
from torchgraph.testing import counters


def tensors(*values: float) -> list[torch.Tensor]:
    return [torch.full((2,), value) for value in values]


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    scale: float = 1.0
    extra: Any = None


class Pair(NamedTuple):
    left: torch.Tensor
    right: Any


class ModelOutput(collections.OrderedDict):
    """As transformers have it: an ordered dict and a dataclass in one."""

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(cls)

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                self[field.name] = value

    def __getitem__(self, key):
        return super().__getitem__(key) if isinstance(key, str) else tuple(self.values())[key]


class Logits(ModelOutput):
    loss: Any = None
    logits: Any = None


CALLS: dict[str, tuple[Any, Any]] = {
    "keywords": (lambda a, b: a - 2 * b, lambda a, b: ((), {"b": b, "a": a})),
    "mixed": (lambda a, *, b: a - 2 * b, lambda a, b: ((a,), {"b": b})),
    "default": (lambda a, b=None, c=3: a * c if b is None else a, lambda a, b: ((a,), {})),
    "star": (lambda *xs, **ks: xs[0] - 2 * ks["k"], lambda a, b: ((a,), {"k": b})),
    "int keys": (lambda d: d[1] - 2 * d[0], lambda a, b: (({1: a, 0: b},), {})),
    "nested": (
        lambda t: t[0]["x"][1] - 2 * t[1].extra.left,
        lambda a, b: (([{"x": (None, a)}, Batch(b, extra=Pair(b, None))],), {}),
    ),
    "empty": (lambda x, e, d: x + len(e) + len(d), lambda a, b: ((a, [], {}), {})),
    "none and numbers": (
        lambda x, n, i, f, s, t: x * i * f + len(s) * t + (0 if n is None else 1),
        lambda a, b: ((a, None, 2, 0.5, "abc", True), {}),
    ),
    "dtype and device": (
        lambda x, t, d: x.to(t).to(d),
        lambda a, b: ((a, torch.float64, torch.device("cpu")), {}),
    ),
    "0-dim": (lambda x, s: x * s, lambda a, b: ((a, b.sum()), {})),
}


@pytest.mark.parametrize("name", CALLS)
def test_any_tree_of_arguments(name):
    function, arguments = CALLS[name]
    graph = Function(function)
    with counters.expect(captures=1, replays=2):
        for a, b in ((3.0, 5.0), (7.0, 11.0), (2.0, 4.0), (6.0, 1.0)):
            args, kwargs = arguments(*tensors(a, b))
            assert torch.equal(graph(*args, **kwargs), function(*args, **kwargs))


def test_an_input_mutated_in_build_changes_for_the_caller():
    def function(x, d):
        x[0].zero_()
        x.t()[1] += 1
        d["y"][0].mul_(2)
        return x.sum() + d["y"]

    graph = Function(function)
    for _ in range(4):
        x, y = torch.ones(2, 3), torch.full((2,), 3.0)
        x2, y2 = x.clone(), y.clone()
        got = graph(x, {"y": y})
        assert torch.equal(got, function(x2, {"y": y2}))
        assert torch.equal(x, x2)
        assert torch.equal(y, y2)


@pytest.mark.parametrize("mutate", [False, True])
def test_the_same_tensor_twice(mutate):
    def function(x, y):
        if mutate:
            x.add_(1)
        return x * 2 + y

    graph = Function(function)
    for _ in range(5):
        x, other = torch.ones(2), torch.ones(2)
        try:
            got = graph(x, x)
        except tg.errors.SharedMemory as error:  # right or refused
            said = str(error)
            assert mutate
            assert "pass it once" in said
            assert torch.equal(x, other)
        else:
            assert torch.equal(got, function(other, other))
            assert torch.equal(x, other)


@pytest.mark.filterwarnings("ignore:The step runs in eager. args.* lies in the memory")
def test_an_argument_that_shares_memory_with_a_state_that_the_step_writes_runs_in_eager():
    """A program reads and writes in an order of its own; eager sees the new value half-way."""
    model, twin = nn.BatchNorm1d(4), nn.BatchNorm1d(4)

    def function(model, x, mean):
        return (model(x), mean * 2)[1]

    graph = Function(lambda x, mean: function(model, x, mean), model=model)
    new = Function(lambda x, mean: function(model, x, mean), model=model)
    for number, x in enumerate(data(12)):
        if number % 4 < 3:
            assert torch.equal(graph(x, torch.ones(4)), function(twin, x, torch.ones(4)))
            continue
        with counters.expect(replays=0):
            got = (new if number == 7 else graph)(x, model.running_mean)
        assert torch.equal(got, function(twin, x, twin.running_mean))
    assert torch.equal(model.running_mean, twin.running_mean)
    model.eval()
    assert torch.equal(graph(x, model.running_mean), model.running_mean * 2)


def test_overlapping_views_after_separate_ones():
    def function(x, y):
        x.add_(1)
        return x * 2 + y

    graph = Function(function)
    whole = torch.ones(6)
    for start in (1.0, 2.0, 3.0):  # the last one replays
        assert torch.equal(graph(whole[:3], whole[3:]), torch.full((3,), 2 * start + 3))
    other = torch.ones(6)
    with pytest.warns(tg.errors.EagerWarning, match="shares memory"):
        got = graph(other[:3], other[1:4])
    twin = torch.ones(6)
    assert torch.equal(got, function(twin[:3], twin[1:4]))


def test_arguments_that_do_not_fit_build():
    class Two(tg.Graph):
        def build(self, a, b):
            return a + b

    two = Two()
    for args, kwargs in (((torch.ones(1),), {}), ((), {"a": 1, "c": 2}), ((1, 2, 3), {})):
        with pytest.raises(TypeError):
            two(*args, **kwargs)
    assert torch.equal(two(torch.ones(1), torch.ones(1)), torch.full((1,), 2.0))


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"k": [memoryview(bytearray(b"x"))]}, r"args\[0\]\['k'\]\[0\]"),
        (bytearray(b"x"), r"args\[0\]"),
    ],
)
def test_an_argument_that_cannot_be_compared_is_refused_with_its_path(value, path):
    graph = Function(lambda v: torch.ones(1))
    with pytest.raises(UnsupportedInput, match=path):
        graph(value)


def test_an_input_with_an_autograd_graph_is_refused():
    x = torch.ones(2, requires_grad=True) * 2
    graph = Function(lambda x: x + 1)
    with pytest.raises(UnsupportedInput, match=r"detach"):
        graph(x)
    assert torch.equal(graph(x.detach()), torch.full((2,), 3.0))


def test_an_input_that_requires_grad_gets_no_grad_and_can_be_differentiated():
    def function(x):
        (gradient,) = torch.autograd.grad((x**3).sum(), x)
        return gradient

    graph = Function(function)
    x = torch.tensor([1.0, 2.0], requires_grad=True)

    assert torch.equal(graph(x), 3 * x.detach() ** 2)
    assert x.grad is None


def test_a_backward_leaves_the_grad_of_an_input_as_it_is():
    model, optimizer = made()
    graph = Train(model, optimizer)
    x = data()[0].requires_grad_()
    for held in (None, torch.ones_like(x), torch.zeros_like(x)):
        for _ in range(4):
            x.grad = held
            graph(x)
            assert x.grad is held
            assert held is None or torch.equal(held, torch.full_like(x, float(held.max())))


@pytest.mark.parametrize("write", [torch.zero_, lambda x: x.fill_(2.0), lambda x: x.mul_(2)])
@pytest.mark.parametrize("view", [lambda x: x.expand(3, 4), lambda x: x.unfold(0, 2, 1)])
def test_a_write_into_elements_that_share_memory_is_refused(write, view):
    # Eager refuses most such writes; torch's functional form of the others computes other numbers.
    graph = Function(lambda x: write(view(x * 2)))
    with pytest.raises(CaptureError, match="share memory") as error:
        graph(torch.arange(4.0))
    assert error.value.where is not None
    columns = Function(lambda x: write((x * 2).view(2, 2).t()) * 1)
    x = torch.arange(4.0)
    assert torch.equal(columns(x), write((x * 2).view(2, 2).t()))


def test_batches_that_begin_anywhere_in_their_memory():
    graph = Function(lambda x: x.t() * 2)
    captures = counters.captures
    for x in torch.randn(6, 5, 4):
        assert torch.equal(graph(x), x.t() * 2)

    assert counters.captures == captures + 1


def test_what_as_strided_reads_of_a_batch_that_begins_elsewhere():
    def step(x):
        return x.as_strided((2, 2), (1, 1), x.storage_offset())

    graph = Function(step)
    for x in [torch.randn(4) for _ in range(4)] + list(torch.randn(3, 4)):
        assert torch.equal(graph(x), step(x))


@pytest.mark.parametrize("value", [5, "seen", None, (1, 2.0)])
def test_a_plain_value_that_build_puts_on_an_argument_lies_there_after_each_call(value):
    class Marks(tg.Graph):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)
            self.add_optimizer(torch.optim.SGD(self.layer.parameters(), lr=0.1))

        def build(self, x):
            x.mark = value
            loss = self.layer(x).mean()
            loss.backward()
            return loss

    graph = Marks()
    graph.config.set_look_again("off")  # it is right without
    for _ in range(5):
        x = torch.randn(2, 3)
        graph(x)
        assert x.mark == value
    assert graph.report().calls.programs == 3
