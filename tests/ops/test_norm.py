"""Layer norm and RMS norm with a residual: against float64, and that bad arguments raise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.nn import functional as F

from tests import support
from torchgraph.library.dtypes import wide
from torchgraph.passes.fusions.norm import op as norm

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
# Of a result of the size of one: the sums' rounding, and that of the result's dtype.
TOLERANCE = {
    torch.float32: 2e-6,
    torch.float64: 1e-14,
    torch.bfloat16: 2**-8,
    torch.float16: 2**-11 + 2e-6,
}
EPS = 1e-5


def laid_out(layout: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Random numbers in that layout; ``misaligned`` begins at an odd element of its storage."""
    values = torch.randn(shape).to(dtype)
    if layout == "transposed":
        return values.mT.contiguous().mT
    if layout == "gaps":
        return torch.stack([values, values], -1)[..., 0]
    if layout == "misaligned":
        return torch.cat([values.new_zeros(1), values.flatten()])[1:].view(shape)
    return values


def near(got: torch.Tensor, want: torch.Tensor, size: torch.Tensor, dtype: torch.dtype) -> None:
    """Within rounding of terms of that size."""
    atol = TOLERANCE[dtype] * size.item()
    torch.testing.assert_close(got.double(), want, rtol=0.0, atol=atol, equal_nan=True)


def largest(*factors: torch.Tensor) -> torch.Tensor:
    """The product of the largest absolute values; 0 of none."""
    return torch.stack(
        [x.double().abs().amax() if x.numel() else torch.zeros(()) for x in factors]
    ).prod()


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["layer", "rms"]),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(["contiguous", "transposed", "gaps", "misaligned"]),
    rows=st.integers(0, 70),
    width=st.one_of(st.integers(2, 40), st.sampled_from([511, 512, 513, 1500])),
    adds=st.booleans(),
    mixed=st.booleans(),
    offset=st.sampled_from([0.0, 100.0]),
    seed=st.integers(0, 2**31),
)
def test_against_float64(kind, dtype, layout, rows, width, adds, mixed, offset, seed):
    torch.manual_seed(seed)
    shape = (2, rows, width)
    x = laid_out(layout, shape, dtype)
    residual = laid_out(layout, shape, dtype) + offset if adds else None
    of_parameters = wide(dtype) if mixed else dtype
    weight = (torch.rand(width) + 0.5).to(of_parameters)
    bias = torch.randn(width).to(of_parameters) if kind == "layer" else None
    total = (x if residual is None else x + residual).double().requires_grad_()
    parameters = [each.double().requires_grad_() for each in (weight, bias) if each is not None]
    if kind == "layer":
        want = F.layer_norm(total, (width,), *parameters, EPS)
        summed, out, mean, rstd = norm.add_layer_norm(x, residual, weight, bias, EPS)
        statistics = (mean, rstd)
    else:
        want = F.rms_norm(total, (width,), *parameters, EPS)
        summed, out, rstd = norm.add_rms_norm(x, residual, weight, EPS)
        statistics = (rstd,)
    assert out.is_contiguous()
    assert summed.numel() == (0 if residual is None else x.numel())
    if residual is not None:
        assert torch.equal(summed.double(), total)
    # The mean is rounded as x is, and what is normalized is their difference.
    lost = 1.0 + (largest(total.detach(), rstd) if kind == "layer" else 0.0)
    near(out, want.detach(), lost * (largest(want.detach()) + 1.0), dtype)

    grad_out, grad_sum = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    wanted = torch.autograd.grad(want, [total, *parameters], grad_out.double())
    backward = norm.add_layer_norm_backward if kind == "layer" else norm.add_rms_norm_backward
    values = (x if residual is None else summed).contiguous()
    normal = (total.detach() - (statistics[0] if kind == "layer" else 0.0)) * rstd
    for more in (None, grad_sum):
        grad, *others = backward(grad_out, more, values, *statistics, weight)
        right = wanted[0] if more is None else wanted[0] + more.double()
        terms = largest(grad_out, weight, rstd, 1.0 + normal) + largest(right)
        near(grad, right, lost * terms, dtype)
        rounded = wide(dtype) if mixed else dtype
        terms = lost * (1.0 + rows) * largest(grad_out, 1.0 + normal)
        for got, parameter in zip(others, wanted[1:], strict=True):
            near(got, parameter, terms, rounded)


def test_one_element_alone():
    x, weight, bias = torch.randn(4, 1), torch.tensor([2.0]), torch.tensor([0.5])
    _, out, mean, rstd = norm.add_layer_norm(x, None, weight, bias, EPS)
    assert torch.equal(mean, x)
    assert torch.equal(out, torch.full_like(x, 0.5))
    grad, by_weight, by_bias = norm.add_layer_norm_backward(x, None, x, mean, rstd, weight)
    assert not grad.any()
    assert not by_weight.any()
    torch.testing.assert_close(by_bias, x.sum(0))


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e-42, 3e38])
def test_special_values_give_what_torch_gives(kind, value):
    x = torch.randn(3, 40)
    x[1, 7] = value
    weight = torch.ones(40)
    if kind == "layer":
        out, want = norm.add_layer_norm(x, None, weight, None, EPS)[1], F.layer_norm(x, (40,))
    else:
        out = norm.add_rms_norm(x, None, weight, EPS)[1]
        want = F.rms_norm(x, (40,), weight, EPS)
    torch.testing.assert_close(out, want, equal_nan=True, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("adds", [False, True])
def test_the_references_compute_the_same(dtype, adds):
    x, grad = torch.randn(5, 30).to(dtype), torch.randn(5, 30).to(dtype)
    residual = torch.randn(5, 30).to(dtype) if adds else None
    weight, bias = torch.randn(30).to(dtype), torch.randn(30).to(dtype)
    arguments: tuple[Any, ...] = (x, residual, weight, bias, EPS)
    results = norm.add_layer_norm(*arguments)
    torch.testing.assert_close(results, norm._layer_reference(*arguments))
    back = (grad, residual, x, *results[2:], weight)
    torch.testing.assert_close(
        norm.add_layer_norm_backward(*back), norm._layer_gradient_reference(*back)
    )
    arguments = (x, residual, weight, EPS)
    results = norm.add_rms_norm(*arguments)
    torch.testing.assert_close(results, norm._rms_reference(*arguments))
    back = (grad, residual, x, results[2], weight)
    torch.testing.assert_close(
        norm.add_rms_norm_backward(*back), norm._rms_gradient_reference(*back)
    )


def test_sums_do_not_depend_on_the_number_of_threads():
    x, weight = torch.randn(900, 200), torch.randn(200)
    _, _, rstd = norm.add_rms_norm(x, None, weight, EPS)
    arguments = (torch.randn(900, 200), None, x, rstd, weight)
    one = norm.add_rms_norm_backward(*arguments)
    try:
        torch.set_num_threads(2)
        two = norm.add_rms_norm_backward(*arguments)
    finally:
        torch.set_num_threads(1)
    assert all(map(support.same_bits, one, two))


@pytest.mark.parametrize("adds", [False, True])
def test_first_and_second_derivatives(adds):
    x, residual = (torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    weight, bias = (torch.randn(4, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def layer(x: Any, residual: Any, weight: Any, bias: Any) -> Any:
        total, out, *_ = norm.add_layer_norm(x, residual if adds else None, weight, bias, EPS)
        return (out, total) if adds else out

    def rms(x: Any, residual: Any, weight: Any) -> Any:
        total, out, _ = norm.add_rms_norm(x, residual if adds else None, weight, EPS)
        return (out, total) if adds else out

    for function, inputs in ((layer, (x, residual, weight, bias)), (rms, (x, residual, weight))):
        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's own
@pytest.mark.parametrize("adds", [False, True])
def test_opcheck(adds):
    x, grad, weight = torch.randn(3, 4), torch.randn(3, 4), torch.rand(4)
    residual = torch.randn(3, 4) if adds else None
    leaf = x.clone().requires_grad_()
    check = torch.library.opcheck
    check(norm.add_layer_norm, (leaf, residual, weight, torch.rand(4), EPS))
    check(norm.add_rms_norm, (leaf, residual, weight, EPS))
    _, _, mean, rstd = norm.add_layer_norm(x, residual, weight, None, EPS)
    check(norm.add_layer_norm_backward, (grad, residual, x, mean, rstd, weight))
    check(norm.add_rms_norm_backward, (grad, residual, x, rstd, weight))


X, W, R = torch.zeros(3, 4), torch.ones(4), torch.ones(3, 1)
BAD = {
    "a scalar": (torch.zeros(()), None, W, None, EPS),
    "no width": (torch.zeros(3, 0), None, torch.ones(0), None, EPS),
    "integers": (X.long(), None, W, None, EPS),
    "a residual of another shape": (X, torch.zeros(3, 1), W, None, EPS),
    "a residual of another dtype": (X, X.double(), W, None, EPS),
    "a short weight": (X, None, torch.ones(3), None, EPS),
    "a weight of two dimensions": (X, None, torch.ones(1, 4), None, EPS),
    "a weight of less precision": (X, None, W.half(), None, EPS),
    "a short bias": (X, None, W, torch.ones(3), EPS),
    "a weight on another device": (X, None, W.to("meta"), None, EPS),
}
BAD_BACKWARD = {
    "grad_out of another shape": (X[:2], None, X, R, R, W),
    "grad_sum of another dtype": (X, X.half(), X, R, R, W),
    "mean without its dimension": (X, None, X, torch.ones(3), R, W),
    "rstd of another dtype": (X, None, X, R, R.double(), W),
    "rstd too long": (X, None, X, R, torch.ones(3, 2), W),
    "a short weight": (X, None, X, R, R, torch.ones(3)),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_raise(name):
    for of in (norm.add_layer_norm, norm._layer_reference):
        with pytest.raises(RuntimeError, match="norm:"):
            of(*BAD[name])


@pytest.mark.parametrize("name", BAD_BACKWARD)
def test_bad_arguments_of_the_backward_raise(name):
    for of in (norm.add_layer_norm_backward, norm._layer_gradient_reference):
        with pytest.raises(RuntimeError, match="norm:"):
            of(*BAD_BACKWARD[name])
