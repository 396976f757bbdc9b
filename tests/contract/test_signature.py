"""Which calls share a program: values, types, structures, and how many programs are kept."""

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import torchgraph as tg
from tests import support
from tests.contract.models import Eval, Function, data
from tests.contract.test_inputs import tensors
from tests.support import settle
from torchgraph._torch import cuda as _cuda
from torchgraph.errors import CacheThrashWarning, EagerWarning
from torchgraph.testing import counters

A, B = tensors(3.0, 5.0)


@dataclasses.dataclass(frozen=True)
class Opaque:
    """Is compared by its own equality."""

    n: int


@pytest.mark.parametrize(
    ("one", "two"),
    [
        *((2, 3), (2, 2.0), (1, True), (None, 0), ("a", "b"), (0.0, -0.0), ((1, 2), [1, 2])),
        *((Opaque(2), Opaque(3)), ({"a": [A]}, {"a": [A, B]}), ({"a": [A]}, {"a": (A,)})),
    ],
)
def test_another_value_or_structure_is_another_program(one, two):
    def function(x, value):
        return x * 2 if repr(value) == repr(one) else x * 3

    graph = Function(function)
    x = torch.ones(2)

    with counters.expect(captures=2):
        assert torch.equal(settle(graph, x, one), x * 2)
        assert torch.equal(settle(graph, x, two), x * 3)
    with counters.expect(captures=0, replays=2):
        assert torch.equal(graph(x, copy.deepcopy(one)), x * 2)
        assert torch.equal(graph(x, copy.deepcopy(two)), x * 3)


def test_positional_and_keyword_are_one_signature():
    class Named(tg.Graph):
        def build(self, a, b, *, c=1):
            return a - 2 * b * c

    graph = Named()
    a, b = tensors(3.0, 5.0)
    with counters.expect(captures=1):
        for args, kwargs in (((a, b), {}), ((a,), {"b": b}), ((), {"b": b, "a": a})):
            assert torch.equal(settle(graph, *args, **kwargs), a - 2 * b)
    assert torch.equal(graph(a, b, c=3), a - 6 * b)


def test_nan_as_an_argument_is_equal_to_itself():
    graph = Function(lambda x, value: x + value)
    with counters.expect(captures=1, replays=1):
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
        for value in (x, other, x, other, x, other, x, other):
            got = graph(value)
            assert torch.equal(got, value + 1)
            assert got.dtype is value.dtype
            assert got.shape == value.shape


def test_the_cache_drops_what_was_used_longest_ago():
    graph = Function(lambda x: x * 2)
    graph.config.set_cache_size(2)
    one, two, three = (torch.ones(n) for n in (1, 2, 3))
    with counters.expect(captures=3):
        settle(graph, one)
        settle(graph, two)
        graph(one)
        settle(graph, three)  # drops the one for `two`
    with counters.expect(captures=0, replays=1):
        graph(one)
    with counters.expect(captures=1):
        settle(graph, two)


def test_the_default_cache_holds_eight():
    graph = Function(lambda x: x * 2)
    # A kind that comes behind another new one is recorded when it comes again.
    with counters.expect(captures=8, replays=10):
        for _ in range(4):
            for size in range(1, 9):
                graph(torch.ones(size))


def test_a_value_that_moves_keeps_nothing_of_old_calls():
    graph = Function(lambda x, value: x * value)
    graph.config.set_cache_size(2)
    with pytest.warns((CacheThrashWarning, EagerWarning)) as found:
        got = [graph(torch.ones(2), number) for number in range(40)]
    assert [(one.category, one.filename) for one in found] == [(EagerWarning, __file__)]
    assert torch.stack(got)[:, 0].tolist() == list(range(40))
    assert len(support.replays(graph)) == 0
    assert len(graph._runner.recordings.signatures) == 8


def test_one_warning_when_python_goes_by_a_value_that_moves():
    graph = Function(lambda x: x * len(f"{x.sum().item()}"))
    graph.config.set_cache_size(3)
    batches = [torch.full((2,), float(number)) for number in range(12)]
    match = r"was 4\.0 and is 6\.0 \(at .*test_signature.py:\d+ .*return it"
    with pytest.warns(EagerWarning, match=match) as found:
        got = [graph(x) for x in batches]
    assert len(found) == 1
    assert all(
        torch.equal(one, x * len(f"{x.sum().item()}")) for one, x in zip(got, batches, strict=True)
    )


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
    with counters.expect(captures=3, replays=5):
        for _ in range(4):
            for rows in (2, 3, 4):
                x = data(rows=rows)[0]
                assert torch.equal(graph(x), model(x) * 2.0)
    assert graph.config.options.cache_size == 3

    default = tg.Graph.with_dynamic_input_shape()
    made = type("Made", (Eval,), {"__init__": default(Eval.__init__)})(model)
    assert made.config.options.cache_size == 10
    with pytest.raises(tg.errors.NotSupported, match="enable_shared"):
        tg.Graph.with_dynamic_input_shape(size=9, enable_shared=False)


def test_what_chooses_kernels_of_a_gpu_is_a_part_of_it(monkeypatch):
    """A CUDA Graph would go on with the kernels that it was captured with."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    graph, x = Function(lambda x: 2 * x), torch.ones(2)
    with counters.expect(captures=1):
        settle(graph, x)
    switches = torch.backends.cuda.matmul
    before, switches.fp32_precision = switches.fp32_precision, "tf32"
    try:
        with counters.expect(captures=1):
            settle(graph, x)
    finally:
        switches.fp32_precision = before
    with counters.expect(captures=0, replays=1):
        graph(x)


def test_attention_kernels_of_a_gpu_are_a_part_of_it():
    before = _cuda.switches()
    with sdpa_kernel(SDPBackend.MATH):
        assert _cuda.switches() != before
    assert _cuda.switches() == before


def test_an_argument_of_the_users_may_have_any_name():
    """What a call is passed on by has no names of its own that a keyword could hit."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @tg.step
    def step(x, **given: int):
        optimizer.zero_grad()
        loss = model(x).sum() * given["self"] * given["call"]
        loss.backward()
        optimizer.step()
        return loss

    names = {"self": 2, "call": 3, "step": 1, "args": 1, "kwargs": 1, "replay": 1}
    for _ in range(4):
        step(torch.ones(2, 3), **names)
    assert step.report().calls.programs > 0
    assert step.check(torch.ones(2, 3), **names) is None
    with pytest.raises(TypeError, match=r"step\(\) missing 1 required positional argument: 'x'"):
        step(**names)
