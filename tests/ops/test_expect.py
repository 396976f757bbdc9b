"""Predicates by themselves: which values are the same, what they say, how tracing meets them."""

from __future__ import annotations

import math

import pytest
import torch

from torchgraph import _torch, library as ops
from torchgraph.ir import effects
from torchgraph.library import ValueMoved
from torchgraph.library.expect import same as same_on_the_host

NAN, INF = math.nan, math.inf
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2]
COMPLEX = [torch.complex64, torch.complex128]
WHOLE = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def same(left, right):
    """What the host finds, and an op that a GPU may run finds too."""
    found = same_on_the_host(left, right)
    assert ops.differs(left, right).item() is not found
    return found


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX)
@pytest.mark.parametrize("left", [0.0, -0.0, 1.5, -1.5, INF, -INF, NAN])
@pytest.mark.parametrize("right", [0.0, -0.0, 1.5, -1.5, INF, -INF, NAN])
def test_one_number_and_many_agree(dtype, left, right):
    equal = left == right and math.copysign(1, left) == math.copysign(1, right)
    equal = equal or (math.isnan(left) and math.isnan(right))
    one, other = (torch.tensor(number).to(dtype) for number in (left, right))
    assert same(one, other) is equal
    many = torch.tensor([1.0, 0.0, NAN, left]).to(dtype)
    assert same(many, torch.tensor([1.0, 0.0, NAN, right]).to(dtype)) is equal
    assert same(many.reshape(2, 2).t(), torch.tensor([[1, NAN], [0, right]]).to(dtype)) is equal


@pytest.mark.parametrize("dtype", COMPLEX)
def test_imaginary_parts_count(dtype):
    for shape in ((), (3,)):
        one = torch.full(shape, complex(0, 0.0), dtype=dtype)
        assert same(one, one.clone())
        assert not same(one, torch.full(shape, complex(0, -0.0), dtype=dtype))
        assert not same(one + 1j, (one + 1j).conj())
        assert same((one + 1j).conj(), one - 1j)


@pytest.mark.parametrize("dtype", WHOLE)
def test_whole_numbers(dtype):
    assert same(torch.tensor(1, dtype=dtype), torch.tensor(1, dtype=dtype))
    assert not same(torch.tensor(1, dtype=dtype), torch.tensor(0, dtype=dtype))
    assert same(torch.tensor([1, 0], dtype=dtype), torch.tensor([1, 0], dtype=dtype))
    assert not same(torch.tensor([1, 0], dtype=dtype), torch.tensor([1, 1], dtype=dtype))


def test_large_whole_numbers_are_not_rounded():
    assert not same(torch.tensor(2**60), torch.tensor(2**60 + 1))
    assert not same(torch.tensor([2**60, 0]), torch.tensor([2**60 + 1, 0]))


def test_shape_and_dtype_count():
    assert not same(torch.tensor(1), torch.tensor(1.0))
    assert not same(torch.tensor(1), torch.tensor([1]))
    assert not same(torch.tensor(True), torch.tensor(1))
    assert same(torch.empty(0, 3), torch.empty(0, 3))
    assert not same(torch.empty(0, 3), torch.empty(3, 0))


@pytest.mark.parametrize(
    ("value", "expected", "message"),
    [
        (torch.tensor(2), torch.tensor(3), "expected 3, found 2"),
        (torch.tensor(True), torch.tensor(1), r"expected 1 as int64\[\], found True as bool\[\]"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), r"expected \[1, 3\], found \[1, 2\]"),
        (torch.zeros(9), torch.ones(9), r"expected float32\[9\], found other values"),
    ],
)
def test_what_it_says(value, expected, message):
    with pytest.raises(ValueMoved, match=f"^{message}$") as caught:
        ops.expect(value, expected)
    assert caught.value.expected
    ops.expect(value, value.clone())


def test_shapes():
    ops.expect_shape(torch.empty(2, 3), [2, 3])
    ops.expect_shape(torch.tensor(1.0), [])
    with pytest.raises(ValueMoved, match=r"^expected the shape \[2, 4\], found \[2, 3\]$"):
        ops.expect_shape(torch.empty(2, 3), [2, 4])


@pytest.mark.parametrize("op", [ops.expect, ops.expect_shape])
def test_effects(op):
    found = effects.of_target(op)
    assert found == effects.Effects(expects=True)
    assert found.ordered
    assert not found.pure


def step(x):
    ops.expect(x.sum() > 0, torch.tensor(True))
    found = x.nonzero()
    ops.expect_shape(found, [3, 1])
    return x.mul_(2), found


@pytest.mark.parametrize("functional", [False, True])
def test_a_trace_keeps_them(functional):
    way = torch.func.functionalize(step) if functional else step
    gm = _torch.make_fx(way)(torch.ones(3))
    gm.graph.eliminate_dead_code()
    targets = [node.target for node in gm.graph.nodes]
    assert targets.count(ops.expect) == targets.count(ops.expect_shape) == 1
    gm(torch.ones(3))
    with pytest.raises(ValueMoved):
        gm(-torch.ones(3))
    with pytest.raises(ValueMoved):
        gm(torch.tensor([1.0, 0.0, 1.0]))


def test_fake_tensors_and_gradients_do_not_mind():
    with _torch.fake_mode():
        ops.expect(torch.ones(3), torch.ones(2))
        ops.expect_shape(torch.ones(3), [2])
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    ops.expect(y, torch.full((3,), 2.0))
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))
