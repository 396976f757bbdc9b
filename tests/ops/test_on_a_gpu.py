"""Our CUDA kernels against the same ops on the CPU, by `make gpu-second`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.ops.cases import DTYPES, RULES, Case, laid_out, make, moved_to
from torchgraph import ops
from torchgraph.library import definition as library
from torchgraph.passes.fusions.bce_mean import op as bce
from torchgraph.passes.fusions.cross_entropy.op import backward, forward
from torchgraph.passes.fusions.model_update import op as update

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

CUDA = torch.device("cuda")
LAYOUTS = ("contiguous", "transposed", "gaps", "offset", "expanded")
SHAPES = [(3,), (0,), (2, 5), (4, 3, 3, 3), (70001,), (), (257, 129)]
CLOSE: dict[torch.dtype, dict[str, float]] = {
    torch.float64: {"rtol": 1e-12, "atol": 1e-13},
    torch.float32: {"rtol": 2e-6, "atol": 1e-6},
    torch.bfloat16: {"rtol": 2**-7, "atol": 2**-9},
    torch.float16: {"rtol": 2**-9, "atol": 2**-11},
}


def moved(value: Any) -> Any:
    return moved_to(CUDA, value)


def on_gpu(case: Case, *, steps: bool) -> Case:
    lists = {
        name: list(map(moved, tensors)) if steps or name != "steps" else tensors
        for name, tensors in case.copy().lists.items()
    }
    return replace(case, lists=lists, options={k: moved(v) for k, v in case.options.items()})


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got.cpu(), wanted, **CLOSE[wanted.dtype], equal_nan=True)


@pytest.mark.parametrize(
    "op",
    [
        *(update.writing(rule, device=device) for rule in RULES for device in (False, True)),
        *(forward, backward, bce.forward, bce.backward, ops.cast_scale),
    ],
    ids=str,
)
def test_there_is_a_compiled_kernel(op):
    assert library.has_kernel(op, CUDA)


@pytest.mark.parametrize("device_numbers", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", RULES)
def test_updates(rule, dtype, device_numbers):
    case = make(rule, SHAPES, dtype, copy_dtype=torch.bfloat16, l1=0.01)
    case.options.update(grad_scale=torch.tensor(2.0), clip_coef=torch.tensor(0.5))
    wanted = case.run()
    given = on_gpu(case, steps=device_numbers)
    if device_numbers:
        options = {
            name: torch.tensor(value, dtype=torch.float64, device=CUDA)
            if type(value) is float
            else value
            for name, value in given.options.items()
        }
        update.writing(rule, device=True)(*given.lists.values(), **options)
    else:
        update.writing(rule)(*given.lists.values(), **given.options)
    for name, tensors in wanted.lists.items():
        for got, right in zip(given.lists[name], tensors, strict=True):
            close(got, right)


@pytest.mark.parametrize("device_numbers", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_a_step_with_infinities_writes_nothing(rule, device_numbers):
    case = on_gpu(make(rule, SHAPES), steps=device_numbers)
    before = {name: [t.clone() for t in tensors] for name, tensors in case.lists.items()}
    options = case.options
    if device_numbers:
        options = {n: torch.tensor(v, dtype=torch.float64, device=CUDA) for n, v in options.items()}
    op = update.writing(rule, device=device_numbers)
    op(*case.lists.values(), **options, found_inf=torch.ones((), device=CUDA))
    for name, tensors in before.items():
        for got, kept in zip(case.lists[name], tensors, strict=True):
            assert torch.equal(got, kept), name
    op(*case.lists.values(), **options, found_inf=torch.zeros((), device=CUDA))
    assert not torch.equal(case.lists["params"][0], before["params"][0])
    assert all(map(torch.gt, case.lists.get("steps", []), before.get("steps", [])))


@pytest.mark.parametrize("layout", LAYOUTS[:4])
@pytest.mark.parametrize(("rows", "classes"), [(1, 1), (7, 3), (64, 1000), (33, 50257), (0, 4)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy(dtype, rows, classes, layout):
    logits = laid_out((4 * torch.randn(rows, classes, dtype=torch.float64)).to(dtype), layout)
    target = torch.randint(classes, (rows,))
    target[::5] = -100
    for options in ({}, {"reduction": "sum", "label_smoothing": 0.1}, {"reduction": "none"}):
        x, y = logits.double().requires_grad_(), moved(logits).requires_grad_()
        wanted = F.cross_entropy(x, target, **options)
        got = ops.cross_entropy(y, target.to(CUDA), **options)
        gradient = torch.randn_like(wanted)
        (right,) = torch.autograd.grad(wanted, x, gradient)
        (found,) = torch.autograd.grad(got, y, gradient.to(CUDA, got.dtype))
        bound = 1e-12 if dtype == torch.float64 else 1e-5
        torch.testing.assert_close(
            got.cpu().double(), wanted.detach(), rtol=bound, atol=bound, equal_nan=True
        )
        torch.testing.assert_close(found.cpu().double(), right, **CLOSE[dtype], equal_nan=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_binary_cross_entropy(dtype, layout):
    for shape in ((), (5,), (37, 40), (1 << 17,)):
        logits = laid_out((5 * torch.randn(shape, dtype=torch.float64)).to(dtype), layout)
        target = laid_out(torch.rand(shape), layout)
        exact = logits.double().clone().requires_grad_()
        wanted = F.binary_cross_entropy_with_logits(exact, target.double())
        wanted.backward()
        x, y = moved(logits), moved(target)
        loss = bce.forward(x, y)
        bound = 1e-12 if dtype == torch.float64 else 2e-6
        torch.testing.assert_close(loss.cpu().double(), wanted.detach(), rtol=bound, atol=bound)
        gradient = bce.backward(torch.ones_like(loss), x, y)
        torch.testing.assert_close(gradient.cpu().double(), exact.grad, **CLOSE[dtype])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_cast_scale(dtype, layout):
    for shape in ((), (5,), (37, 40), (1 << 17,)):
        x = laid_out(torch.randn(shape, dtype=torch.float64).to(dtype), layout)
        for wide in (torch.float32, torch.float64):
            scale = torch.tensor(0.3, dtype=wide)
            wanted = ops.cast_scale(x, scale, -3e-5, dtype=wide)
            got = ops.cast_scale(moved(x), scale.to(CUDA), -3e-5, dtype=wide)
            torch.testing.assert_close(got.cpu(), wanted, rtol=0, atol=0)
            assert got.stride() == wanted.stride()
