"""Softmax cross-entropy: what it computes, against float64, and that bad arguments raise."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.nn import functional as F

import torchgraph as tg
from tests import support
from torchgraph import ops
from torchgraph.ops import cross_entropy
from torchgraph.passes.fusions.cross_entropy.op import (
    _gradient_reference,
    _reference,
    backward,
    backward_in_place,
    forward,
    wide,
)

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
REDUCTIONS = ["none", "mean", "sum"]
# Relative error of a result that is rounded once: half a unit in the last place.
HALF_ULP = dict(zip(DTYPES, (2**-24, 2**-53, 2**-8, 2**-11), strict=True))


def laid_out(layout: str, rows: int, classes: int, dtype: torch.dtype) -> torch.Tensor:
    """Random logits of those strides; ``misaligned`` begins at an odd element of its storage."""
    made = {
        "contiguous": lambda: torch.randn(rows, classes, dtype=torch.float64).to(dtype),
        "transposed": lambda: torch.randn(classes, rows, dtype=torch.float64).to(dtype).t(),
        "gaps": lambda: torch.randn(rows, 2 * classes, dtype=torch.float64).to(dtype)[:, ::2],
        "rows of a larger one": lambda: torch.randn(rows, classes + 3, dtype=torch.float64).to(
            dtype
        )[:, 2:-1],
        "misaligned": lambda: (
            torch.randn(rows * classes + 1, dtype=torch.float64).to(dtype)[1:].view(rows, classes)
        ),
    }
    return made[layout]()


LAYOUTS = ["contiguous", "transposed", "gaps", "rows of a larger one", "misaligned"]


def expected(
    logits: torch.Tensor, target: torch.Tensor, grad: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and gradient of torch's own in float64, for logits as they were rounded."""
    x = logits.detach().double().requires_grad_()
    loss = F.cross_entropy(x, target, **options)
    (gradient,) = torch.autograd.grad(loss, x, grad.double())
    return loss.detach(), gradient


def check(logits: torch.Tensor, target: torch.Tensor, **options: Any) -> None:
    """Loss and gradient are those of float64, within rounding."""
    x = logits.detach().requires_grad_()
    weight = options.pop("weight", None)
    loss = cross_entropy(x, target, weight, **options)
    grad = torch.randn_like(loss)
    (gradient,) = torch.autograd.grad(loss, x, grad)
    weight = None if weight is None else weight.double()
    right, right_gradient = expected(logits, target, grad, weight=weight, **options)

    assert loss.dtype == wide(logits.dtype)
    assert (gradient.dtype, gradient.shape) == (logits.dtype, logits.shape)
    precise = logits.dtype == torch.float64
    torch.testing.assert_close(
        loss.double(),
        right,
        equal_nan=True,
        rtol=1e-13 if precise else 2e-6,
        atol=1e-13 if precise else 2e-6,
    )
    # The gradient is a difference of terms of this size; lse, a float64, is as large as the logits.
    large = logits.abs().max().item() if logits.numel() else 0.0
    size = grad.abs().max().item() if grad.numel() else 0.0
    arithmetic = 1e-12 if precise else 1e-5
    least = torch.finfo(logits.dtype).smallest_normal * torch.finfo(logits.dtype).eps
    torch.testing.assert_close(
        gradient.double(),
        right_gradient,
        equal_nan=True,
        rtol=arithmetic + HALF_ULP[logits.dtype],
        atol=max(size * max(1e-14, large * 2**-52) if precise else 1e-6 * size, least),
    )


@settings(max_examples=80, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(LAYOUTS),
    rows=st.integers(0, 9),
    classes=st.one_of(st.integers(1, 40), st.sampled_from([1023, 1024, 1025, 2500])),
    reduction=st.sampled_from(REDUCTIONS),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    weighted=st.booleans(),
    ignored=st.sampled_from([0.0, 0.3, 1.0]),
    scale=st.sampled_from([1e-3, 1.0, 20.0]),
    offset=st.sampled_from([0.0, -300.0, 1e4]),
    seed=st.integers(0, 2**31),
)
def test_against_float64(
    dtype, layout, rows, classes, reduction, smoothing, weighted, ignored, scale, offset, seed
):
    torch.manual_seed(seed)
    logits = laid_out(layout, rows, classes, dtype).mul_(scale).add_(offset)
    target = torch.randint(0, classes, (rows,))
    target[torch.rand(rows) < ignored] = -7
    weight = torch.rand(classes, dtype=wide(dtype)) + 0.1 if weighted else None
    check(
        logits,
        target,
        weight=weight,
        reduction=reduction,
        label_smoothing=smoothing,
        ignore_index=-7,
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_every_target_ignored(reduction, smoothing):
    logits = torch.randn(4, 5, requires_grad=True)
    loss = cross_entropy(
        logits, torch.full((4,), -100), reduction=reduction, label_smoothing=smoothing
    )
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    want = torch.full_like(loss, math.nan if reduction == "mean" else 0.0)
    assert torch.equal(loss.isnan(), want.isnan())
    assert torch.equal(loss.nan_to_num(), want.nan_to_num())
    assert not gradient.any()


def test_no_rows():
    empty, none = torch.randn(0, 5), torch.empty(0, dtype=torch.int64)
    assert cross_entropy(empty, none).isnan()
    assert cross_entropy(empty, none, reduction="sum") == 0
    assert cross_entropy(empty, none, reduction="none").shape == (0,)


INF = math.inf
SPECIAL = {
    "one inf": [INF, 1.0, 2.0],
    "inf at the target": [0.0, INF, 2.0],
    "one class left": [-INF, 1.0, -INF],
    "the target left out": [0.0, -INF, 2.0],
    "no class left": [-INF, -INF, -INF],
    "nan": [0.0, math.nan, 2.0],
    "first block all out": [-INF] * 1100 + [-1000.0, 0.0],
    "denormals": [1e-45, -1e-45, 1e-40],
    "largest": [3.4e38, -3.4e38, 3.3e38],
}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_logits_give_what_torch_gives(name, smoothing):
    logits = torch.tensor([SPECIAL[name]]).requires_grad_()
    target = torch.tensor([1])
    loss = cross_entropy(logits, target, label_smoothing=smoothing)
    right = F.cross_entropy(logits, target, label_smoothing=smoothing)
    (gradient,) = torch.autograd.grad(loss, logits)
    (right_gradient,) = torch.autograd.grad(right, logits)
    torch.testing.assert_close(loss, right, equal_nan=True)
    torch.testing.assert_close(gradient, right_gradient, equal_nan=True, rtol=1e-5, atol=1e-7)


def test_gradients_below_the_normal_numbers_are_there():
    logits = torch.tensor([[0.0, -100.0, -103.0, -120.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(cross_entropy(logits, torch.tensor([0])), logits)
    _, right = expected(logits, torch.tensor([0]), torch.ones(()))
    assert (gradient.double() - right).abs()[0, 1:].max() <= 2**-149
    assert 0 < gradient[0, 2] < torch.finfo(torch.float32).smallest_normal


@pytest.mark.parametrize("shape", [(5,), (3, 5), (1, 5, 4), (2, 5, 3)])
def test_shapes_of_torch(shape):
    last = [0, *range(2, len(shape)), 1] if len(shape) > 1 else [0]
    logits = torch.randn([shape[d] for d in last])
    logits = (
        logits.permute([0, len(shape) - 1, *range(1, len(shape) - 1)]) if len(shape) > 2 else logits
    )
    target = torch.randint(0, 5, shape[:1] + shape[2:] if len(shape) > 1 else ())
    for reduction in REDUCTIONS:
        torch.testing.assert_close(
            cross_entropy(logits, target, reduction=reduction),
            F.cross_entropy(logits, target, reduction=reduction),
        )


def test_classes_that_do_not_lie_side_by_side_are_refused():
    with pytest.raises(ValueError, match="side by side"):
        cross_entropy(torch.randn(2, 5, 3), torch.zeros(2, 3, dtype=torch.int64))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_in_place_gives_the_same_bits(layout, dtype, smoothing):
    logits = laid_out(layout, 7, 1030, dtype)
    target = torch.tensor([0, 1029, 5, -100, 3, 4, 4])
    options = (None, 1, -100, smoothing)
    _, lse, total = forward(logits, target, *options)
    grad = torch.ones((), dtype=wide(dtype))
    want = backward(logits, grad, target, lse, total, *options)
    version = logits._version
    backward_in_place(logits, grad, target, lse, total, *options)
    assert logits._version > version
    assert torch.equal(logits, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_reference_computes_the_same(dtype, reduction, smoothing, weighted):
    logits, target = torch.randn(6, 50).to(dtype), torch.tensor([0, 49, -100, 7, 7, 1])
    weight = torch.rand(50, dtype=wide(dtype)) if weighted else None
    options = (weight, reduction, -100, smoothing)
    results = forward(logits, target, *options)
    torch.testing.assert_close(results, _reference(logits, target, *options))
    arguments = (logits, torch.randn_like(results[0]), target, *results[1:], *options)
    torch.testing.assert_close(backward(*arguments), _gradient_reference(*arguments))


def test_sums_do_not_depend_on_the_number_of_threads():
    logits, target = torch.randn(300, 777), torch.randint(0, 777, (300,))
    one = forward(logits, target)
    try:
        torch.set_num_threads(2)
        two = forward(logits, target)
    finally:
        torch.set_num_threads(1)
    assert all(map(support.same_bits, one, two))


# --- derivatives, compilation, capture ------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_first_and_second_derivatives(reduction, smoothing):
    logits = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    target, weight = torch.tensor([0, 3, -100]), torch.rand(4, dtype=torch.float64)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return cross_entropy(x, target, weight, reduction=reduction, label_smoothing=smoothing)

    assert torch.autograd.gradcheck(loss, logits)
    assert torch.autograd.gradgradcheck(loss, logits)


def test_weights_get_no_gradient_silently():
    weight = torch.rand(4, requires_grad=True)
    with pytest.raises(RuntimeError, match="weight"):
        cross_entropy(torch.randn(3, 4, requires_grad=True), torch.tensor([0, 1, 2]), weight)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's own
@pytest.mark.parametrize(
    ("dtype", "reduction"),
    [(torch.float32, 1), (torch.float32, 0), (torch.float64, 2), (torch.bfloat16, 1)],
)
def test_opcheck(dtype, reduction):
    logits, target = torch.randn(3, 4).to(dtype), torch.tensor([0, 1, -100])
    options = (torch.rand(4, dtype=wide(dtype)), reduction, -100, 0.1)
    loss, lse, total = forward(logits, target, *options)
    arguments = (loss, target, lse, total, *options)
    torch.library.opcheck(forward, (logits.clone().requires_grad_(), target, *options))
    torch.library.opcheck(backward, (logits, *arguments))
    torch.library.opcheck(backward_in_place, (logits.clone(), *arguments))


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")  # Inductor imports it
def test_under_torch_compile(backend):
    logits, target = torch.randn(6, 9, requires_grad=True), torch.tensor([0, 8, -100, 7, 7, 1])

    def step(x: torch.Tensor) -> torch.Tensor:
        return cross_entropy(x * 2, target, label_smoothing=0.1) * 3

    torch.compiler.reset()
    compiled = torch.compile(step, backend=backend, fullgraph=True)
    got, want = compiled(logits), step(logits)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(*(torch.autograd.grad(loss, logits) for loss in (got, want)))


def test_in_a_graph():
    model = torch.nn.Linear(4, 9)
    other = copy.deepcopy(model)

    class Train(tg.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))

        def build(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            loss = cross_entropy(self.model(x), target)
            loss.backward()
            return loss

    x, target = torch.randn(6, 4), torch.tensor([0, 8, -100, 7, 7, 1])
    loss = cross_entropy(other(x), target)
    loss.backward()
    torch.optim.SGD(other.parameters(), lr=0.1).step()
    assert torch.equal(Train()(x, target), loss.detach())
    assert torch.equal(model.weight, other.weight)


# --- bad arguments --------------------------------------------------------------------------------

X, T = torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64)
BAD = {
    "three dimensions": (torch.zeros(3, 4, 1), T),
    "integer logits": (torch.zeros(3, 4, dtype=torch.int64), T),
    "complex logits": (torch.zeros(3, 4, dtype=torch.complex64), T),
    "too few targets": (X, T[:2]),
    "targets of two dimensions": (X, T[:, None]),
    "int32 targets": (X, T.int()),
    "probability targets": (X, torch.rand(3, 4)),
    "too few weights": (X, T, torch.rand(3)),
    "weights of two dimensions": (X, T, torch.rand(4, 1)),
    "weights of another dtype": (X, T, torch.rand(4).double()),
    "half weights": (X.half(), T, torch.rand(4).half()),
    "weights on another device": (X, T, torch.rand(4, device="meta")),
    "targets on another device": (X, T.to("meta")),
    "an unknown reduction": (X, T, None, 3),
    "a negative reduction": (X, T, None, -1),
    "too much smoothing": (X, T, None, 1, -100, 1.5),
    "negative smoothing": (X, T, None, 1, -100, -0.1),
    "smoothing nan": (X, T, None, 1, -100, math.nan),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("of", [forward, _reference], ids=["kernel", "reference"])
def test_bad_arguments_raise(of, name):
    with pytest.raises(RuntimeError):
        of(*BAD[name])


LSE, TOTAL, G = torch.zeros(3, dtype=torch.float64), torch.ones(()), torch.ones(())
BAD_BACKWARD = {
    "grad of another shape": (X, torch.ones(3), T, LSE, TOTAL),
    "grad of another dtype": (X, G.double(), T, LSE, TOTAL),
    "grad of the rows' number": (X, torch.ones(2), T, LSE, TOTAL, None, 0),
    "lse of another dtype": (X, G, T, LSE.float(), TOTAL),
    "lse too short": (X, G, T, LSE[:2], TOTAL),
    "total of a shape": (X, G, T, LSE, torch.ones(1)),
    "total of another dtype": (X, G, T, LSE, TOTAL.double()),
    "lse on another device": (X, G, T, LSE.to("meta"), TOTAL),
}


@pytest.mark.parametrize("name", BAD_BACKWARD)
@pytest.mark.parametrize("of", [backward, backward_in_place, _gradient_reference])
def test_bad_arguments_of_the_backward_raise(of, name):
    with pytest.raises(RuntimeError):
        of(*BAD_BACKWARD[name])


def test_memory_that_is_shared_is_not_written():
    expanded = torch.zeros(1, 4).expand(3, 4)
    with pytest.raises(RuntimeError, match="share memory"):
        backward_in_place(expanded, G, T, LSE, TOTAL)
    both = torch.zeros(16)
    with pytest.raises(RuntimeError, match="share memory"):
        backward_in_place(both[:12].view(3, 4), G, T, LSE, TOTAL, both[8:12])
    assert backward(expanded, G, T, LSE, TOTAL).shape == (3, 4)


@pytest.mark.parametrize("wrong", [4, -1, 2**62, -(2**62)])
@pytest.mark.parametrize("of", [forward, _reference], ids=["kernel", "reference"])
def test_a_target_that_is_no_class_is_an_index_error(of, wrong):
    with pytest.raises(IndexError, match=f"Target {wrong} is out of bounds"):
        of(X, torch.tensor([0, wrong, 1]))


def test_nothing_is_written_before_targets_are_checked():
    logits = torch.randn(3, 4)
    before = logits.clone()
    with pytest.raises(IndexError):
        backward_in_place(logits, G, torch.tensor([0, 1, 4]), LSE, TOTAL)
    assert torch.equal(logits, before)


def test_an_unknown_reduction_is_a_value_error():
    with pytest.raises(ValueError, match="none, mean, sum"):
        ops.cross_entropy(X, T, reduction="median")
