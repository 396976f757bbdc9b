"""Ops of our own: what they draw and compute, and that schemas and fake kernels tell the truth."""

from __future__ import annotations

import pytest
import torch

from torchgraph import ops
from torchgraph.ir import effects
from torchgraph.library import definition as library

LIKE = {
    "contiguous": torch.zeros(4, 5),
    "transposed": torch.zeros(5, 4).t(),
    "gaps": torch.zeros(4, 10)[:, ::2],
    "empty": torch.zeros(0, 3),
}


@pytest.mark.parametrize("layout", LIKE)
def test_draws_are_those_of_the_op_in_place(layout):
    like = LIKE[layout]
    for op, arguments in ((ops.bernoulli, (0.7,)), (ops.normal, (1.0, 2.0))):
        drawn = torch.empty_strided(like.shape, like.stride())
        torch.manual_seed(0)
        getattr(drawn, f"{op._opname}_")(*arguments)
        torch.manual_seed(0)
        got = op(like, *arguments)
        assert torch.equal(got, drawn)
        assert got.stride() == drawn.stride()
        assert effects.of_target(op).random
        _check(op, (like, *arguments))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["slices", "products", "columns", "batch"])
def test_grouped_mm_has_the_shape_and_strides_of_the_kernel(form, dtype):
    ends = torch.tensor([8, 16], dtype=torch.int32)
    a, b, offs = {
        "slices": (torch.randn(16, 8), torch.randn(2, 3, 8).mT, ends),
        "products": (torch.randn(16, 24).t(), torch.randn(16, 8), ends),
        "columns": (torch.randn(2, 8, 16), torch.randn(16, 16), ends),
        "batch": (torch.randn(2, 8, 16), torch.randn(2, 3, 16).mT, None),
    }[form]
    _check(ops.grouped_mm, (a.to(dtype), b.to(dtype), offs))


def test_marks_are_copies():
    x = torch.randn(3, 4).t()
    for mark in (ops.gradient, ops.accumulated):
        got = mark(x, "weight")
        assert torch.equal(got, x)
        assert got.data_ptr() != x.data_ptr()
        _check(mark, (x, "weight"))


def test_has_kernel_tells_a_kernel_from_the_reference():
    op = library.define("has_kernel_test(Tensor x) -> Tensor", torch.sin)
    cpu = torch.device("cpu")
    assert not library.has_kernel(op, cpu)
    kernels = torch.library.Library("torchgraph", "IMPL")
    kernels.impl("has_kernel_test", torch.cos, "CPU")
    try:
        assert library.has_kernel(op, cpu)
        assert not library.has_kernel(op, torch.device("meta"))
    finally:
        kernels._destroy()


def _check(op, arguments, options=None):
    torch.library.opcheck(
        op, arguments, options or {}, test_utils=("test_schema", "test_faketensor")
    )
