"""bce_with_logits_mean and its gradient: against float64 and torch's, and what they refuse."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch.nn import functional as F

from tests.ops.cases import DTYPES, laid_out
from torchgraph.library.dtypes import wide
from torchgraph.passes.fusions.bce_mean import op as bce

LAYOUTS = ("contiguous", "transposed", "gaps", "offset", "expanded")
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, 1e-8, 17.0, -90.0, 800.0, -800.0)
PRECISION = {
    torch.float64: 1e-14,
    torch.float32: 4e-7,
    torch.bfloat16: 2**-8,
    torch.float16: 2**-10,
}
"""Of a gradient: a unit in the last place of the logits' dtype, or a few of float32."""
FORMS = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "reference"])


@st.composite
def problems(draw):
    shape = draw(st.lists(st.integers(0, 40), max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    logits = 5 * torch.randn(shape, generator=generator, dtype=torch.float64)
    target = torch.rand(shape, generator=generator, dtype=torch.float64)
    if draw(st.booleans()):
        target = target.round()
    if logits.numel() and draw(st.booleans()):
        logits.view(-1)[0] = draw(st.sampled_from(SPECIAL))
    kinds = draw(st.tuples(st.sampled_from(DTYPES), st.sampled_from(DTYPES)))
    layouts = draw(st.tuples(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS)))
    return laid_out(logits.to(kinds[0]), layouts[0]), laid_out(target.to(kinds[1]), layouts[1])


@FORMS
def test_loss_and_gradient(compiled):
    forward = bce.forward if compiled else bce.reference
    backward = bce.backward if compiled else bce.backward_reference

    @settings(
        max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(problems(), st.sampled_from((1.0, -3.0, 1024.0)))
    def check(problem, grad):
        logits, target = problem
        exact = logits.double().detach().clone().requires_grad_()
        wanted = F.binary_cross_entropy_with_logits(exact, target.double())
        wanted.backward(torch.tensor(grad, dtype=torch.float64))
        loss = forward(logits, target)
        assert loss.dtype == wide(logits.dtype)
        bound = 1e-13 if logits.dtype == torch.float64 else 2e-6
        torch.testing.assert_close(
            loss.double(), wanted.detach(), rtol=bound, atol=bound / 10, equal_nan=True
        )
        got = backward(torch.tensor(grad, dtype=loss.dtype), logits, target)
        assert got.dtype == logits.dtype
        assert got.stride() == torch.empty_like(logits).stride()
        rtol = PRECISION[logits.dtype]
        atol = rtol * abs(grad) / max(1, logits.numel()) + 1e-7 * (logits.itemsize == 2)
        torch.testing.assert_close(
            got.double(), exact.grad.double(), rtol=rtol, atol=atol, equal_nan=True
        )

    check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_size_of_logit(dtype):
    x = torch.cat([torch.linspace(-200, 200, 8001), torch.logspace(-30, 2, 999)]).to(dtype)
    bound = 4e-7 if dtype == torch.float32 else 501 * 2**-53  # a rounding for each loss added up
    for target in (0.0, 1.0, 0.25):
        for value in x.split(501):
            y = torch.full_like(value, target)
            wanted = F.binary_cross_entropy_with_logits(value.double(), y.double())
            torch.testing.assert_close(
                bce.forward(value, y).double(), wanted, rtol=bound, atol=bound / 100
            )


def test_does_not_depend_on_the_number_of_threads():
    x, y = torch.randn(300_001), torch.rand(300_001)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append((bce.forward(x, y), bce.backward(torch.ones(()), x, y)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, found[0][0]) and torch.equal(b, found[0][1]) for a, b in found)


def test_in_eager_as_torch():
    x, y = torch.randn(7, 3, requires_grad=True), torch.rand(7, 3)
    (wanted,) = torch.autograd.grad(F.binary_cross_entropy_with_logits(x, y), x)
    (got,) = torch.autograd.grad(bce.forward(x, y), x)
    torch.testing.assert_close(got, wanted)
    compiled = torch.compile(bce.forward, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, y), bce.forward(x, y))


def test_the_derivatives():
    x, y = torch.randn(5, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    for both in ((True, False), (False, True), (True, True)):
        given = tuple(
            each.clone().requires_grad_(on) for each, on in zip((x, y), both, strict=True)
        )
        assert torch.autograd.gradcheck(bce.forward, given)
        assert torch.autograd.gradgradcheck(bce.forward, given)


def test_half_with_a_gradient_by_the_target():
    x = torch.randn(6, dtype=torch.bfloat16, requires_grad=True)
    y = torch.rand(6, requires_grad=True)
    bce.forward(x, y).backward()
    assert (x.grad.dtype, y.grad.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(y.grad, -x.detach().float() / 6)


# opcheck of torch 2.15 reads the gradient of a copy that it has made itself.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_the_schemas_tell_the_truth():
    for x in (torch.randn(4, 5), torch.randn(4, 5).t().bfloat16(), torch.randn(1, 3)[:, ::2]):
        y, one = torch.rand(x.shape), torch.ones(())
        torch.library.opcheck(bce.forward, (x.clone().requires_grad_(), y))
        torch.library.opcheck(bce.backward, (one, x, y))


MISALIGNED = torch.frombuffer(bytearray(9), dtype=torch.float32, offset=1, count=2)
REFUSED = {
    "integers": (torch.ones(2, dtype=torch.int64), torch.ones(2)),
    "a target of integers": (torch.ones(2), torch.ones(2, dtype=torch.int64)),
    "another shape": (torch.ones(2), torch.ones(1)),
    "two devices": (torch.ones(2), torch.ones(2, device="meta")),
    "logits between elements": (MISALIGNED, torch.ones(2)),
    "a target between elements": (torch.ones(2), MISALIGNED),
}


@FORMS
@pytest.mark.parametrize("case", REFUSED)
def test_is_refused(case, compiled):
    forward = bce.forward if compiled else bce.reference
    backward = bce.backward if compiled else bce.backward_reference
    with pytest.raises(RuntimeError, match="bce_with_logits_mean"):
        forward(*REFUSED[case])
    with pytest.raises(RuntimeError, match="bce_with_logits_mean"):
        backward(torch.ones(()), *REFUSED[case])


@FORMS
@pytest.mark.parametrize(
    "grad",
    [torch.ones(1), torch.ones((), dtype=torch.int64), torch.ones((), device="meta")],
    ids=["a dimension", "an integer", "elsewhere"],
)
def test_a_gradient_of_the_loss_is_refused(grad, compiled):
    backward = bce.backward if compiled else bce.backward_reference
    with pytest.raises(RuntimeError, match="bce_with_logits_mean"):
        backward(grad, torch.ones(2), torch.ones(2))
