"""Arguments of a call: any tree, bound by path, part of the signature, written when mutated."""

import collections
import dataclasses
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.contract.models import Eval, Function, data
from torchgraph.errors import CacheThrashWarning, UnsupportedInput
from torchgraph.testing import counters


def tensors(*values: float) -> list[torch.Tensor]:
    return [torch.full((2,), value) for value in values]


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    scale: float = 1.0
    extra: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    name: str


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
    "positional": (lambda a, b: a - 2 * b, lambda a, b: ((a, b), {})),
    "keywords": (lambda a, b: a - 2 * b, lambda a, b: ((), {"b": b, "a": a})),
    "mixed": (lambda a, *, b: a - 2 * b, lambda a, b: ((a,), {"b": b})),
    "default": (lambda a, b=None, c=3: a * c if b is None else a, lambda a, b: ((a,), {})),
    "star": (lambda *xs, **ks: xs[0] - 2 * ks["k"], lambda a, b: ((a,), {"k": b})),
    "list": (lambda xs: xs[0] - 2 * xs[1], lambda a, b: (([a, b],), {})),
    "tuple": (lambda xs: xs[0] - 2 * xs[1], lambda a, b: (((a, b),), {})),
    "dict": (lambda d: d["a"] - 2 * d["b"], lambda a, b: (({"a": a, "b": b},), {})),
    "int keys": (lambda d: d[1] - 2 * d[0], lambda a, b: (({1: a, 0: b},), {})),
    "ordered": (
        lambda d: d["a"] - 2 * d["b"],
        lambda a, b: ((collections.OrderedDict(a=a, b=b),), {}),
    ),
    "defaultdict": (
        lambda d: d["a"] - 2 * d["b"][0],
        lambda a, b: ((collections.defaultdict(list, a=a, b=[b]),), {}),
    ),
    "dataclass": (lambda d: d.x * d.scale - d.extra[0], lambda a, b: ((Batch(a, 3.0, [b]),), {})),
    "frozen": (lambda d: d.x * len(d.name), lambda a, b: ((Frozen(a, "abc"),), {})),
    "namedtuple": (lambda p: p.left - p.right["k"], lambda a, b: ((Pair(a, {"k": b}),), {})),
    "ModelOutput": (lambda o: o.loss - o["logits"], lambda a, b: ((Logits(a, b),), {})),
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
    with counters.expect(captures=1):
        for a, b in ((3.0, 5.0), (7.0, 11.0)):
            args, kwargs = arguments(*tensors(a, b))
            assert torch.equal(graph(*args, **kwargs), function(*args, **kwargs))


def test_keywords_in_another_order():
    """OneFlow binds by flat position and computes wrong numbers here."""
    graph = Function(lambda a, b: a - 2 * b)
    a, b = tensors(3.0, 5.0)
    expected = graph(a=a, b=b)

    with counters.expect(captures=0):
        assert torch.equal(graph(b=b, a=a), expected)
    assert torch.equal(graph(a, b=b), expected)
    assert torch.equal(graph(a, b), expected)


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
def test_dict_keys_in_another_order(kind):
    graph = Function(lambda d: d["a"] - 2 * d["b"])
    a, b = tensors(3.0, 5.0)
    expected = graph(kind(a=a, b=b))

    assert torch.equal(graph(kind(b=b, a=a)), expected)


def test_iteration_over_a_dict_follows_its_order():
    def first(d):
        return next(iter(d.values())) * 1

    graph = Function(first)
    a, b = tensors(3.0, 5.0)

    assert torch.equal(graph({"a": a, "b": b}), a)
    assert torch.equal(graph({"b": b, "a": a}), b)


@pytest.mark.parametrize(
    ("one", "two"),
    [(2, 3), (2, 2.0), (1, True), (None, 0), ("a", "b"), (0.0, -0.0), ((1, 2), [1, 2])],
)
def test_another_value_is_another_program(one, two):
    def function(x, value):
        return x * 2 if repr(value) == repr(one) else x * 3

    graph = Function(function)
    x = torch.ones(2)

    assert torch.equal(graph(x, one), x * 2)
    assert torch.equal(graph(x, two), x * 3)
    with counters.expect(captures=0):
        assert torch.equal(graph(x, one), x * 2)


def test_positional_and_keyword_are_one_signature():
    class Named(tg.Graph):
        def build(self, a, b, *, c=1):
            return a - 2 * b * c

    graph = Named()
    a, b = tensors(3.0, 5.0)
    with counters.expect(captures=1):
        for args, kwargs in (((a, b), {}), ((a,), {"b": b}), ((), {"b": b, "a": a})):
            assert torch.equal(graph(*args, **kwargs), a - 2 * b)
    assert torch.equal(graph(a, b, c=3), a - 6 * b)


def test_nan_as_an_argument_is_equal_to_itself():
    graph = Function(lambda x, value: x + value)
    with counters.expect(captures=1):
        for _ in range(3):
            assert graph(torch.ones(2), float("nan")).isnan().all()


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(3),
        torch.zeros(2, dtype=torch.float64),
        torch.zeros(2, 1),
        torch.zeros(4)[::2],
        torch.zeros(2, requires_grad=True),
    ],
    ids=["shape", "dtype", "ndim", "strides", "requires_grad"],
)
def test_another_tensor_type_is_another_program(other):
    graph = Function(lambda x: x + 1)
    x = torch.zeros(2)
    with counters.expect(captures=2):
        for value in (x, other, x, other):
            got = graph(value)
            assert torch.equal(got, value + 1)
            assert got.dtype is value.dtype
            assert got.shape == value.shape


def test_another_structure_is_another_program():
    graph = Function(lambda t: sum(t["a"]))
    a, b = tensors(1.0, 2.0)
    assert torch.equal(graph({"a": [a]}), a)
    assert torch.equal(graph({"a": [a, b]}), a + b)
    assert torch.equal(graph({"a": (b,)}), b)


def test_the_cache_drops_what_was_used_longest_ago():
    graph = Function(lambda x: x * 2)
    graph.config.set_cache_size(2)
    one, two, three = (torch.ones(n) for n in (1, 2, 3))
    with counters.expect(captures=3):
        graph(one)
        graph(two)
        graph(one)
        graph(three)  # drops the one for `two`
        graph(one)
    with counters.expect(captures=1):
        graph(two)


def test_the_default_cache_holds_eight():
    graph = Function(lambda x: x * 2)
    with counters.expect(captures=8):
        for _ in range(2):
            for size in range(1, 9):
                graph(torch.ones(size))


def test_one_warning_when_the_cache_thrashes():
    graph = Function(lambda x, value: x * value)
    graph.config.set_cache_size(2)
    x = torch.ones(2)
    with pytest.warns(CacheThrashWarning) as found:
        _ = [graph(x, number) for number in range(12)]
    assert len(found) == 1
    assert found[0].filename == __file__


def test_a_few_shapes_in_turn_are_no_thrash():
    graph = Function(lambda x: x * 2)
    graph.config.set_cache_size(2)
    for number in range(12):
        graph(torch.ones(1 + number % 2))


def test_with_dynamic_input_shape():
    class Sized(tg.Graph):
        @tg.Graph.with_dynamic_input_shape(size=3)
        def __init__(self, model, *, scale=1.0):
            super().__init__()
            self.model = model
            self.scale = scale

        def build(self, x):
            return self.model(x) * self.scale

    model = nn.Linear(4, 2)
    graph = Sized(model, scale=2.0)
    with counters.expect(captures=3):
        for _ in range(2):
            for rows in (2, 3, 4):
                x = data(rows=rows)[0]
                assert torch.equal(graph(x), model(x) * 2.0)
    assert graph.config.options.cache_size == 3

    default = tg.Graph.with_dynamic_input_shape()
    made = type("Made", (Eval,), {"__init__": default(Eval.__init__)})(model)
    assert made.config.options.cache_size == 10
    with pytest.raises(tg.errors.NotSupported, match="enable_shared"):
        tg.Graph.with_dynamic_input_shape(size=9, enable_shared=False)


def test_an_input_mutated_in_build_changes_for_the_caller():
    def function(x, d):
        x.add_(1)
        d["y"][0].mul_(2)
        return x + d["y"]

    graph = Function(function)
    for _ in range(3):
        x, y = torch.ones(2), torch.full((2,), 3.0)
        x2, y2 = x.clone(), y.clone()
        got = graph(x, {"y": y})
        assert torch.equal(got, function(x2, {"y": y2}))
        assert torch.equal(x, x2)
        assert torch.equal(y, y2)


def test_a_view_of_an_input_mutated_in_build():
    def function(x):
        x[0].zero_()
        x.t()[1] += 1
        return x.sum()

    graph = Function(function)
    for _ in range(2):
        x, other = torch.ones(2, 3), torch.ones(2, 3)
        assert torch.equal(graph(x), function(other))
        assert torch.equal(x, other)


def test_an_input_that_is_not_contiguous_keeps_its_layout_and_is_not_touched():
    graph = Function(lambda x: x * 2)
    x = torch.arange(6.0).view(2, 3).t()
    got = graph(x)
    assert x.stride() == (1, 3)
    assert torch.equal(got, x * 2)
    assert got.stride() == (x * 2).stride()


@pytest.mark.parametrize("mutate", [False, True])
def test_the_same_tensor_twice(mutate):
    def function(x, y):
        if mutate:
            x.add_(1)
        return x * 2 + y

    graph = Function(function)
    for _ in range(2):
        x, other = torch.ones(2), torch.ones(2)
        try:
            got = graph(x, x)
        except tg.errors.SharedMemory:  # right or refused
            assert mutate
            assert torch.equal(x, other)
        else:
            assert torch.equal(got, function(other, other))
            assert torch.equal(x, other)


def test_the_same_tensor_twice_after_two_different_ones():
    """The program was captured for two tensors; sharing memory must not slip through."""

    def function(x, y):
        x.add_(1)
        return x * 2 + y

    graph = Function(function)
    graph(torch.ones(2), torch.ones(2))
    x, other = torch.ones(2), torch.ones(2)
    try:
        got = graph(x, x)
    except tg.errors.SharedMemory:
        assert torch.equal(x, other)
    else:
        assert torch.equal(got, function(other, other))


def test_two_different_ones_after_the_same_tensor_twice():
    graph = Function(lambda x, y: x * 2 + y)
    x, y = tensors(1.0, 10.0)
    assert torch.equal(graph(x, x), x * 3)
    assert torch.equal(graph(x, y), x * 2 + y)


def test_a_parameter_as_an_argument():
    model = nn.Linear(2, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def function(w):
        loss = (model.weight * w).sum()
        loss.backward()
        return loss

    graph = Function(function, optimizer, model=model)
    twin = model.weight.detach().clone().requires_grad_()
    expected = (twin * twin).sum()
    expected.backward()
    try:
        got = graph(model.weight)
    except tg.errors.GraphError:
        assert torch.equal(model.weight, twin)  # right or refused
    else:
        assert torch.equal(got, expected.detach())
        assert torch.equal(model.weight, twin - twin.grad)


def test_an_argument_that_shares_memory_with_a_state_that_the_step_writes_is_refused():
    """Eager would see the new value half-way; a program reads and writes in an order of its own."""
    model = nn.BatchNorm1d(4)
    graph = Function(lambda x, mean: (model(x), mean * 2)[1], model=model)
    x = data()[0]
    graph(x, torch.ones(4))
    before = model.running_mean.clone()

    with pytest.raises(tg.errors.SharedMemory, match=r"args\[1\]"):
        graph(x, model.running_mean)
    with pytest.raises(tg.errors.SharedMemory):
        Function(lambda x, mean: (model(x), mean * 2)[1], model=model)(x, model.running_mean)
    assert torch.equal(model.running_mean, before)
    model.eval()
    assert torch.equal(graph(x, model.running_mean), before * 2)  # nothing is written


def test_overlapping_views_after_separate_ones():
    def function(x, y):
        x.add_(1)
        return x * 2 + y

    graph = Function(function)
    whole = torch.ones(6)
    assert torch.equal(graph(whole[:3], whole[3:]), torch.full((3,), 5.0))
    other = torch.ones(6)
    try:
        got = graph(other[:3], other[1:4])
    except tg.errors.SharedMemory:
        assert torch.equal(other, torch.ones(6))
    else:
        twin = torch.ones(6)
        assert torch.equal(got, function(twin[:3], twin[1:4]))


def test_no_argument_at_all():
    graph = Function(lambda: torch.arange(3))
    assert torch.equal(graph(), torch.arange(3))
    assert torch.equal(graph(), torch.arange(3))


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
        ({"k": [object.__new__(type("Odd", (), {"__hash__": None}))]}, r"args\[0\]\['k'\]\[0\]"),
        ({1, 2}, r"args\[0\]"),
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


def test_a_sparse_input_is_refused():
    with pytest.raises(UnsupportedInput, match="layout"):
        Function(lambda x: x + 1)(torch.eye(2).to_sparse())


def test_an_input_that_requires_grad_gets_no_grad_and_can_be_differentiated():
    def function(x):
        (gradient,) = torch.autograd.grad((x**3).sum(), x)
        return gradient

    graph = Function(function)
    x = torch.tensor([1.0, 2.0], requires_grad=True)

    assert torch.equal(graph(x), 3 * x.detach() ** 2)
    assert x.grad is None


def test_numpy_arrays_are_refused():
    numpy = pytest.importorskip("numpy")
    with pytest.raises(UnsupportedInput, match=r"args\[0\] is a ndarray"):
        Function(lambda x: torch.as_tensor(x))(numpy.ones(2))


def test_an_object_is_compared_by_its_own_equality():
    @dataclasses.dataclass(frozen=True)
    class Opaque:
        n: int

        def __len__(self):
            return self.n

    graph = Function(lambda x, o: x * len(o))
    x = torch.ones(2)
    with counters.expect(captures=2):
        assert torch.equal(graph(x, Opaque(2)), x * 2)
        assert torch.equal(graph(x, Opaque(2)), x * 2)
        assert torch.equal(graph(x, Opaque(3)), x * 3)
