"""Any object whose tensors can be found, as an argument and as a result."""

import collections
import dataclasses
import functools
import io
import weakref
from typing import Any

import pytest
import torch

from tests.contract.models import Function, data, made
from tests.contract.test_inputs import Logits, Pair
from torchgraph._torch import pytree
from torchgraph.errors import UnsupportedInput, UnsupportedOutput
from torchgraph.testing import counters


class Plain:
    """Nobody's constructor runs, but the user's own."""

    made = 0

    def __init__(self, x, scale=2.0) -> None:
        type(self).made += 1
        self.x, self.scale = x, scale

    def scaled(self):
        return self.x * self.scale


class Slotted:
    __slots__ = ("__scale", "unset", "x")

    def __init__(self, x) -> None:
        self.x, self.__scale = x, 3

    def scaled(self):
        return self.x * self.__scale


class Named(dict):
    """A dict with attributes, as a BatchEncoding is a UserDict with them."""

    def __init__(self, x) -> None:
        super().__init__(x=x)
        self.again, self.scale = x, 4.0

    def __setitem__(self, key, value):
        raise AssertionError("a Graph does not go through a class's own methods")


class Listed(list):
    def __init__(self, x) -> None:
        super().__init__([x])
        self.extra = x + 1


@dataclasses.dataclass
class Counted:
    """Its __post_init__ makes a tensor, and counts."""

    x: torch.Tensor
    double: Any = dataclasses.field(init=False)
    runs = 0

    def __post_init__(self):
        type(self).runs += 1
        self.double = self.x * 2


class Store:
    """As PyG's Data: attributes lie in a store, which knows its owner by a weak reference."""

    def __init__(self, owner, x) -> None:
        vars(self)["mapping"] = {"x": x}
        vars(self)["parent"] = weakref.ref(owner)

    def __getattr__(self, name):
        try:
            return vars(self)["mapping"][name]
        except KeyError:
            raise AttributeError(name) from None


class Data:
    def __init__(self, x) -> None:
        vars(self)["store"] = Store(self, x)

    def __getattr__(self, name):
        if name == "store":
            raise AttributeError(name)
        return getattr(self.store, name)

    def __setattr__(self, name, value):
        self.store.mapping[name] = value


def cyclic(x):
    top: dict[str, Any] = {"x": x}
    top["self"] = top
    top["pair"] = (top, [x + 1])
    return top


def method(x):
    return Plain(x).scaled


def arrays(x):
    numpy = pytest.importorskip("numpy")
    return {"x": x, "shift": numpy.array([1.0, 2.0])}


KINDS: dict[str, tuple[Any, Any]] = {
    "plain": (Plain, lambda o: o.scaled()),
    "slots": (Slotted, lambda o: o.scaled()),
    "dict with attributes": (Named, lambda o: o["x"] * o.again * o.scale),
    "list with attributes": (Listed, lambda o: o[0] * o.extra),
    "post_init": (Counted, lambda o: o.x + o.double),
    "ModelOutput": (lambda x: Logits(x, x + 1), lambda o: o.loss - o["logits"] * o[0]),
    "named tuple": (lambda x: Pair(x, {"k": x + 1}), lambda o: o.left * o.right["k"]),
    "UserDict": (lambda x: collections.UserDict(x=x), lambda o: o["x"] * 2),
    "deque": (lambda x: collections.deque([x, x + 1], maxlen=2), lambda o: o[0] * o[-1]),
    "frozenset": (lambda x: frozenset([x]), lambda o: next(iter(o)) * 2),
    "defaultdict": (
        lambda x: collections.defaultdict(list, x=[x]),
        lambda o: o["x"][0] * (1 + len(o["nothing"])),
    ),
    "counter": (lambda x: [collections.Counter("aab"), x], lambda o: o[1] * o[0]["a"]),
    "store": (Data, lambda o: o.x * 2 + o.store.parent().x),
    "cyclic": (cyclic, lambda o: o["self"]["pair"][0]["x"] * o["pair"][1][0]),
    "partial": (lambda x: functools.partial(torch.add, x, alpha=2), lambda o: o(torch.ones(3))),
    "method": (method, lambda o: o() + 1),
    "slice": (lambda x: (x, slice(0, 2)), lambda o: o[0][o[1]] * 2),
    "return types": (lambda x: x.view(1, 3).max(0), lambda o: o.values * 2 + o.indices),
    "array": (arrays, lambda o: o["x"].sum() * torch.from_numpy(o["shift"] * 2)),
    "distribution": (
        lambda x: torch.distributions.Normal(x, x.abs() + 1),
        lambda o: o.mean * o.variance,
    ),
}


def batches(count: int = 5) -> list[torch.Tensor]:
    return [torch.arange(3.0) + number for number in range(count)]


@pytest.mark.parametrize("name", KINDS)
def test_any_object_as_an_argument(name):
    make, function = KINDS[name]
    graph = Function(function)
    with counters.expect(captures=1, replays=3):
        for x in batches():
            given = make(x)
            got = graph(given)
            assert torch.equal(got, function(make(x)))


@pytest.mark.parametrize("name", KINDS)
def test_any_object_as_a_result(name):
    make, look = KINDS[name]
    graph = Function(lambda x: make(x * 2))
    found = []
    with counters.expect(captures=1, replays=3):
        for x in batches():
            got, expected = graph(x), make(x * 2)
            assert type(got) is type(expected)
            assert torch.equal(look(got), look(expected))
            found.append(got)
    assert len(set(map(id, found))) == 5
    for x, got in zip(batches(), found, strict=True):  # no call changes what another returned
        assert torch.equal(look(got), look(make(x * 2)))


@pytest.mark.parametrize("kind", [Counted, Plain])
def test_constructors_run_as_often_as_in_eager(kind):
    count = "runs" if kind is Counted else "made"
    setattr(kind, count, 0)
    graph = Function(lambda given: kind(given.x + 1))
    for number, x in enumerate(batches()):
        graph(kind(x))
        # The caller's own, and that of build.
        assert getattr(kind, count) == 2 * (number + 1)


def test_what_is_one_object_in_eager_is_one_in_a_replay():
    def function(x):
        y, inner = x * 2, [x + 1]
        return {"y": y, "again": y, "inner": inner, "other": (inner, Plain(y))}

    graph = Function(function)
    for x in batches():
        got = graph(x)
        assert got["y"] is got["again"] is got["other"][1].x
        assert got["inner"] is got["other"][0]
    cycle = Function(lambda x: cyclic(x * 2))
    for x in batches():
        got = cycle(x)
        assert got["self"] is got
        assert got["pair"][0] is got
        assert torch.equal(got["x"], x * 2)
    tied = Function(lambda x: Data(x * 2))
    for x in batches():
        got = tied(x)
        assert got.store.parent() is got


def test_objects_that_no_call_makes_are_returned_themselves():
    settings = Plain(None, {"k": [1, 2]})
    graph = Function(lambda x: {"y": x + 1, "settings": settings, "fresh": Plain(None)})
    found = [graph(x) for x in batches()]
    assert all(got["settings"] is settings for got in found)
    assert len({id(got["fresh"]) for got in found}) == 5
    settings.scale["k"].append(3)
    assert graph(torch.ones(3))["settings"].scale == {"k": [1, 2, 3]}


def test_two_arguments_that_are_one_object_have_a_program_of_their_own():
    def function(a, b):
        a["y"] = a["x"] * 2
        return b["x"] + ("y" in b)

    graph = Function(function)
    for x in batches():
        one, two, twin = {"x": x}, {"x": x}, {"x": x}
        assert torch.equal(graph(one, two), x)
        assert torch.equal(graph(twin, twin), x + 1)
        assert list(two) == ["x"]
        assert torch.equal(twin["y"], x * 2)


@pytest.mark.parametrize("name", ["plain", "dict with attributes"])
def test_an_attribute_that_is_no_tensor_decides_which_program_serves(name):
    def function(o):
        return (o["x"] if isinstance(o, dict) else o.x) * o.number

    graph = Function(function)
    for x in batches():
        for number in (2, 3, 2.0, True, -0.0, 0.0):
            given = KINDS[name][0](x)
            given.number = number
            got, expected = graph(given), function(given)
            assert got.dtype == expected.dtype
            assert torch.equal(got, expected)
            assert torch.equal(got.signbit(), expected.signbit())


@pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")  # weak references move
def test_a_registered_class_goes_by_its_registration():
    values: Any = weakref.WeakKeyDictionary()

    class Box:
        __slots__ = ("__weakref__",)

    def box(children, context):
        made_ = Box()
        values[made_] = (*children, context)
        return made_

    pytree.register_pytree_node(Box, lambda b: (list(values[b][:1]), values[b][1]), box)
    try:
        graph = Function(lambda b, n: box([values[b][0] * n], values[b][1]))
        for x in batches():
            for context in ("a", "b"):
                got = values[graph(box([x], context), 3)]
                assert torch.equal(got[0], x * 3)
                assert got[1] == context
    finally:
        pytree.SUPPORTED_NODES.pop(Box)


def test_small_arrays_are_constants_by_what_they_hold():
    numpy = pytest.importorskip("numpy")
    graph = Function(lambda x, a: x + torch.as_tensor(a))
    array = numpy.zeros(3, dtype="float32")
    for x in batches():
        for value in (1.0, 2.0):
            array[:] = value  # one object all along, and then another one that holds the same
            assert torch.equal(graph(x, array), x + value)
            assert torch.equal(graph(x, array.copy()), x + value)
            array[:] = 7.0
            assert torch.equal(graph(x, numpy.full(3, value, "float32")), x + value)


def closure():
    held = torch.ones(3)
    return lambda x: x + held


TWO = torch.ones(2)
REFUSED: dict[str, tuple[Any, str]] = {
    "generator": (lambda: (i for i in range(3)), "generator.*next"),
    "iterator": (lambda: iter([torch.ones(1)]), "list_iterator.*next"),
    "file": (io.StringIO, "StringIO.*read it before"),
    "closure": (closure, r"function \(closure.*holds a tensor of shape \(3,\)"),
    "default": (lambda: lambda x, y=TWO: x, r"holds a tensor of shape \(2,\)"),
    "bound": (lambda: torch.ones(4).add, r"holds a tensor of shape \(4,\)"),
    "view": ({"a": torch.ones(5)}.values, r"dict_values.*holds a tensor of shape \(5,\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_hides_its_tensors_is_refused_with_its_path(name):
    make, message = REFUSED[name]
    for given, path in (([make()], r"args\[0\]\[0\] is "), (Plain(make()), r"args\[0\]\.x is ")):
        with pytest.raises(UnsupportedInput, match=rf"(?s){path}.*{message}"):
            Function(lambda v: torch.ones(1))(given)
    model, _ = made()
    graph = Function(lambda x: (model(x), {"k": make()}), model=model)
    before = [p.clone() for p in model.state_dict().values()]
    way_out = "return tensors, or any containers"
    with pytest.raises(
        UnsupportedOutput, match=rf"(?s)What the step returned\[1\]\['k'\].*{way_out}"
    ):
        graph(*data())
    assert all(map(torch.equal, before, model.state_dict().values()))


def test_large_arrays_and_keys_that_are_tensors_are_refused():
    numpy = pytest.importorskip("numpy")
    graph = Function(lambda v: torch.ones(1))
    with pytest.raises(UnsupportedInput, match=r"(?s)args\[0\]\['a'\] is a ndarray.*from_numpy"):
        graph({"a": numpy.ones(5000)})
    with pytest.raises(UnsupportedInput, match=r"args\[0\] is a ndarray"):
        graph(numpy.array([object()]))
    with pytest.raises(UnsupportedInput, match=r"args\[0\].* has a tensor as a key"):
        graph([{torch.ones(1): 1}])
