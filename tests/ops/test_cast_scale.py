"""cast_scale: bitwise the separate ops, in x's strides; its derivative; what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from tests import support
from tests.ops.cases import DTYPES, laid_out
from torchgraph import ops
from torchgraph.passes.fusions.cast_scale.op import reference

LAYOUTS = ("contiguous", "transposed", "gaps", "offset", "expanded")
WIDE = (torch.float32, torch.float64)
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, 6e-8, 3e38, 7e4)
COMPUTES = pytest.mark.parametrize(
    "compute", [ops.cast_scale, reference], ids=["compiled", "reference"]
)


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 40), max_size=4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    if values.numel() and draw(st.booleans()):
        values.view(-1)[0] = draw(st.sampled_from(SPECIAL))
    return laid_out(values.to(draw(st.sampled_from(DTYPES))), draw(st.sampled_from(LAYOUTS)))


@COMPUTES
def test_is_the_separate_ops(compute):
    @settings(
        max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(
        tensors(),
        st.sampled_from((0.3, -7.0, 1e-40, math.inf, math.nan)),
        st.sampled_from((1.0, -3e-5, 0.1, 1e30)),
        st.sampled_from(WIDE),
    )
    def check(x, scale, number, dtype):
        scale_by = torch.tensor(scale, dtype=dtype)
        got = compute(x, scale_by, number, dtype=dtype)
        wanted = x.to(dtype) * number * scale_by
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
        assert got.stride() == torch.empty_like(x, dtype=dtype).stride()
        assert torch.equal(got.signbit()[~got.isnan()], wanted.signbit()[~wanted.isnan()])

    check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("threads", [1, 3])
def test_of_many_numbers(dtype, threads):
    x, scale_by = torch.randn(1001, 307).to(dtype), torch.tensor(0.3)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for each in (x, x.t(), x[:, 1::2], x[::3]):
            got = ops.cast_scale(each, scale_by, 0.7, dtype=torch.float32)
            assert support.same_bits(got, each.float() * 0.7 * scale_by)
    finally:
        torch.set_num_threads(before)


def test_a_single_number_keeps_its_strides():
    x = torch.ones(1, 4, 1).as_strided((1, 4, 1), (77, 1, 5)).bfloat16()
    got = ops.cast_scale(x, torch.tensor(2.0), dtype=torch.float32)
    assert got.stride() == torch.empty_like(x, dtype=torch.float32).stride()
    assert ops.cast_scale(x[0, 0, 0], torch.tensor(2.0), dtype=torch.float32).item() == 2.0


def test_never_writes_its_argument():
    x = torch.ones(3)
    assert ops.cast_scale(x, torch.tensor(2.0), dtype=torch.float32).tolist() == [2, 2, 2]
    assert x.tolist() == [1, 1, 1]


def test_the_derivative():
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    scale_by = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def scaled(x, scale_by):
        return ops.cast_scale(x, scale_by, 3.0, dtype=torch.float64)

    assert torch.autograd.gradcheck(scaled, (x, scale_by))
    assert torch.autograd.gradgradcheck(scaled, (x, scale_by))
    half = torch.randn(5, dtype=torch.bfloat16, requires_grad=True)
    ops.cast_scale(half, torch.tensor(2.0), 0.5, dtype=torch.float32).sum().backward()
    assert half.grad.dtype == torch.bfloat16
    assert half.grad.tolist() == [1.0] * 5


# opcheck of torch 2.15 reads the gradient of a copy that it has made itself.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_the_schema_tells_the_truth():
    for x in (torch.randn(3, 2).bfloat16(), torch.randn(4, 5).t(), torch.zeros(0, 3)):
        for dtype in WIDE:
            given = (x.clone().requires_grad_(), torch.tensor(0.5, dtype=dtype), 0.3)
            torch.library.opcheck(ops.cast_scale, given, {"dtype": dtype})


SCALE = torch.tensor(2.0)
REFUSED = {
    "integers": (torch.ones(2, dtype=torch.int32), SCALE, torch.float32),
    "to half": (torch.ones(2), SCALE, torch.float16),
    "a scale of another dtype": (torch.ones(2), SCALE.double(), torch.float32),
    "a scale of one dimension": (torch.ones(2), torch.ones(1), torch.float32),
    "a scale elsewhere": (torch.ones(2), torch.ones((), device="meta"), torch.float32),
    "an address between elements": (
        torch.frombuffer(bytearray(9), dtype=torch.float32, offset=1, count=2),
        SCALE,
        torch.float32,
    ),
}


@COMPUTES
@pytest.mark.parametrize("case", REFUSED)
def test_is_refused(case, compute):
    x, scale_by, dtype = REFUSED[case]
    with pytest.raises(RuntimeError, match="cast_scale"):
        compute(x, scale_by, dtype=dtype)
