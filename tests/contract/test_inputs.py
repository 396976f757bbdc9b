"""Arguments of a call: any tree, bound by path, part of the signature, written when mutated."""

import collections
import dataclasses
import warnings
from typing import Any, NamedTuple

import pytest
import torch

import torchgraph as tg
from tests.cases.plays import Play, singles
from tests.cases.table import Table
from tests.contract.models import Function, Train, data, made
from torchgraph.errors import CaptureError, UnsupportedInput
from torchgraph.reasons import Reason
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


table = Table("graph")
table.rows(
    {
        "batches_that_begin_anywhere": lambda: Play(
            lambda x: x.t() * 2, calls=[(x,) for x in torch.randn(6, 5, 4)]
        )
    },
    recorded=1,
)
table.rows(
    {
        "what_as_strided_reads_of_them": lambda: Play(
            lambda x: x.as_strided((2, 2), (1, 1), x.storage_offset()),
            calls=[*singles(4, 4), *((x,) for x in torch.randn(3, 4))],
        )
    }
)


@pytest.mark.parametrize("case", table)
def test_what_lies_around_a_batch_is_not_read(case):
    case.check()


def test_plain_values_that_build_puts_on_an_argument_lie_there_after_each_call():
    values = {"number": 5, "text": "seen", "none": None, "pair": (1, 2.0)}

    def build(x):
        vars(x).update(values)
        return x * 2

    graph = Function(build)
    graph.config.set_look_again("off")  # it is right without
    for _ in range(5):
        x = torch.randn(2, 3)
        graph(x)
        assert vars(x) == values
    assert graph.report().calls.programs == 3


def test_kinds_of_calls_without_end_are_recorded_in_the_first_two_calls_alone():
    model = torch.nn.Linear(4, 1)
    step = tg.step(lambda x: model(x).sum())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for call in range(40):
            step(torch.ones(1 + call * 7 % 27, 4))
    calls = step.report().calls
    assert calls.recorded == 2  # in which a step that can be no program is an error
    assert {one.reason for one in calls.eager} == {Reason.ARGUMENTS}
    assert "config.set_shape_buckets(0, sizes)" in calls.eager[0].why
    assert len(said) == 1
    for _ in range(6):  # one has come to stay
        step(torch.ones(5, 4))
    assert step.report().calls.programs == 2
