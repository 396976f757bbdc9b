"""grad_stats and clip_coefficient: against float64 and torch.nn.utils, and what they refuse."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.ops.cases import DTYPES, laid_out
from torchgraph import ops
from torchgraph.ops.grad_stats import reference

LAYOUTS = ("contiguous", "transposed", "gaps", "offset", "expanded")
KINDS = (2.0, 1.0, math.inf, -math.inf, 3.0, 0.5, -1.0)
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, 1e-45, 6e-8)


@st.composite
def gradients(draw):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    found = []
    for shape in draw(st.lists(st.lists(st.integers(0, 40), max_size=3), min_size=1, max_size=4)):
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        if values.numel() and draw(st.booleans()):
            values.view(-1)[0] = draw(st.sampled_from(SPECIAL))
        dtype = draw(st.sampled_from(DTYPES))
        found.append(laid_out(values.to(dtype), draw(st.sampled_from(LAYOUTS))))
    return found


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "reference"])
def test_norm_and_count(compiled):
    compute = ops.grad_stats if compiled else reference

    @settings(
        max_examples=80, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(gradients(), st.sampled_from(KINDS), st.sampled_from((None, 8.0)))
    def check(grads, p, scale):
        grad_scale = None if scale is None else torch.tensor(scale)
        norm, not_finite = compute(grads, p, grad_scale)
        everything = torch.cat([grad.double().flatten() for grad in grads])
        assert not_finite.item() == (~everything.isfinite()).sum()
        wide = any(grad.dtype == torch.float64 for grad in grads)
        assert norm.dtype == (torch.float64 if wide else torch.float32)
        if everything.numel():
            wanted = torch.linalg.vector_norm(everything, p) / (scale or 1.0)
        else:
            wanted = torch.tensor(0.0 if p > 0 else math.inf)
        bound = 1e-12 if wide else 1.2e-7
        torch.testing.assert_close(
            norm.double(), wanted.double(), rtol=bound, atol=1e-45, equal_nan=True
        )

    check()


@pytest.mark.parametrize("size", [1.0, 1e-25, 1e-42, 1e25, 3e38, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_norm_of_any_size(size, dtype):
    generator = torch.Generator().manual_seed(5)
    random = torch.randn(300_000, generator=generator)
    for values in (random, random.abs().clamp(min=0.9, max=1.0), torch.full((5000,), 0.7)):
        grad = (values / values.abs().max() * size).to(dtype)
        for grads in ([grad], [grad, torch.ones(3)], [torch.zeros(9999), grad[:1001]]):
            wanted = torch.cat([each.double() for each in grads]).norm()
            norm, not_finite = ops.grad_stats(grads)
            torch.testing.assert_close(norm, wanted.float(), rtol=4e-7, atol=1e-45)
            assert not_finite == 0


def test_counts_what_is_not_finite_among_large_numbers():
    grad = torch.full((10_000,), 1e30)
    grad[[5, 4096, 9_999]] = torch.tensor([math.inf, math.nan, -math.inf])
    norm, not_finite = ops.grad_stats([grad, torch.ones(5)])
    assert norm.isnan()
    assert not_finite == 3
    assert ops.grad_stats([grad], math.inf)[0].isnan()
    assert ops.grad_stats([torch.tensor([1.0, -math.inf])], math.inf)[0] == math.inf


@pytest.mark.parametrize("p", KINDS)
def test_is_the_norm_that_torch_clips_by(p):
    grads = [torch.randn(n) for n in (5, 4096, 70_001)]
    # In float64: torch adds up in few float32 numbers, which loses the sixth digit.
    wanted = torch.nn.utils.get_total_norm([grad.double() for grad in grads], p)
    torch.testing.assert_close(ops.grad_stats(grads, p)[0], wanted.float(), rtol=2e-7, atol=0)


def test_a_thousand_tensors():
    grads = [torch.randn(1 + i % 50) for i in range(1000)]
    grads[777][0] = math.nan
    norm, count = ops.grad_stats(grads)
    assert norm.isnan()
    assert count == 1
    grads[777][0] = 0.0
    torch.testing.assert_close(ops.grad_stats(grads)[0], torch.cat(grads).norm())


def test_large_values_do_not_overflow_on_the_way():
    assert ops.grad_stats([torch.full((4,), 1e38)])[0] == 2e38
    halves = torch.full((100,), 60_000.0, dtype=torch.float16)
    assert ops.grad_stats([halves])[0] == 600_000.0


@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_clipping_as_torch(max_norm):
    param = torch.nn.Parameter(torch.zeros(50))
    param.grad = torch.randn(50)
    norm, _ = ops.grad_stats([param.grad])
    clipped = param.grad * ops.clip_coefficient(norm, max_norm)
    torch.nn.utils.clip_grad_norm_([param], max_norm)
    torch.testing.assert_close(clipped, param.grad)


def test_the_schemas_tell_the_truth():
    grads = [torch.randn(3), torch.randn(2, 2, dtype=torch.bfloat16)]
    torch.library.opcheck(ops.grad_stats, (grads,))
    torch.library.opcheck(ops.grad_stats, (grads, 3.0, torch.tensor(2.0)))
    torch.library.opcheck(ops.clip_coefficient, (torch.tensor(3.0), 1.0))


REFUSED = {
    "no gradients": ([], 2.0, None),
    "p of 0": ([torch.ones(2)], 0.0, None),
    "p of NaN": ([torch.ones(2)], math.nan, None),
    "integers": ([torch.ones(2, dtype=torch.int32)], 2.0, None),
    "two devices": ([torch.ones(2), torch.ones(2, device="meta")], 2.0, None),
    "two scales": ([torch.ones(2)], 2.0, torch.ones(2)),
    "a scale of integers": ([torch.ones(2)], 2.0, torch.tensor(2)),
    "an address between elements": (
        [torch.frombuffer(bytearray(9), dtype=torch.float32, offset=1, count=2)],
        2.0,
        None,
    ),
}


@pytest.mark.parametrize("compute", [ops.grad_stats, reference], ids=["compiled", "reference"])
@pytest.mark.parametrize("case", REFUSED)
def test_is_refused(case, compute):
    with pytest.raises(RuntimeError, match="grad_stats"):
        compute(*REFUSED[case])
