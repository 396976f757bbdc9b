"""The last product and its loss in chunks: against float64, its memory, what is refused."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from tests import support
from torchgraph.library.dtypes import wide
from torchgraph.passes.fusions.linear_cross_entropy import op
from torchgraph.passes.fusions.linear_cross_entropy.op import linear_cross_entropy, rows_at_once

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
NAMES = ["none", "mean", "sum"]
# Of a result rounded once, half a unit in the last place. The logits are rounded, too.
UNIT = dict(zip(DTYPES, (2**-23, 2**-52, 2**-7, 2**-10), strict=True))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(op.LEAST_ROWS, "cpu", 3)
    monkeypatch.setattr(op, "CHUNK_BYTES", 1)


def right(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor,
    grad: torch.Tensor,
    softcap: float = 0.0,
    of_class: torch.Tensor | None = None,
    **options: Any,
) -> list[torch.Tensor]:
    """Loss and gradients of torch's own in float64."""
    given = [each.detach().double().requires_grad_() for each in (hidden, weight)]
    given += [] if bias is None else [bias.detach().double().requires_grad_()]
    logits = F.linear(*given)
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    of_class = None if of_class is None else of_class.double()
    loss = F.cross_entropy(logits, target, of_class, **options)
    return [loss.detach(), *torch.autograd.grad(loss, given, grad.double())]


@settings(max_examples=80, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    rows=st.integers(1, 13),
    classes=st.sampled_from([1, 2, 23, 1030]),
    reduction=st.integers(0, 2),
    smoothing=st.sampled_from([0.0, 0.1]),
    weighted=st.booleans(),
    biased=st.booleans(),
    transposed=st.booleans(),
    softcap=st.sampled_from([0.0, 2.0]),
    widened=st.booleans(),
    ignored=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 2**31),
)
def test_against_float64(
    dtype,
    rows,
    classes,
    reduction,
    smoothing,
    weighted,
    biased,
    transposed,
    softcap,
    widened,
    ignored,
    seed,
):
    torch.manual_seed(seed)
    hidden, weight = torch.randn(rows, 7).to(dtype), torch.randn(classes, 7).to(dtype)
    weight = weight.t().contiguous().t() if transposed else weight
    bias = torch.randn(classes).to(dtype) if biased else None
    target = torch.randint(classes, (rows,))
    target[1:][torch.rand(rows - 1) < ignored] = -7
    of_class = torch.rand(classes, dtype=wide(dtype)) + 0.1 if weighted else None
    grad = torch.randn((rows,) if reduction == 0 else (), dtype=wide(dtype))
    options = (reduction, -7, smoothing, softcap, widened, [True, True, biased])
    got = linear_cross_entropy(hidden, weight, bias, target, grad, of_class, *options)
    how = {"reduction": NAMES[reduction], "label_smoothing": smoothing, "ignore_index": -7}
    want = right(hidden, weight, bias, target, grad, softcap, of_class, **how)
    assert [each.dtype for each in got] == [wide(dtype), *[dtype] * 3]
    assert got[2].stride() == weight.stride()
    # A logit is a sum of seven products; its error moves the loss, and all gradients by its share.
    error = 32 * UNIT[dtype] * (1 + grad.abs().max().item())
    for one, other in zip(got, want, strict=False):
        size = max(1.0, other.abs().max().item())
        assert (one.double() - other).abs().max().item() <= error * size


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_every_target_ignored(reduction):
    hidden, weight, bias = torch.randn(5, 4), torch.randn(6, 4), torch.randn(6)
    seed = torch.ones((5,) if reduction == 0 else ())
    loss, *gradients = linear_cross_entropy(
        hidden, weight, bias, torch.full((5,), -100), seed, None, reduction
    )
    want = torch.full_like(loss, math.nan if reduction == 1 else 0.0)
    torch.testing.assert_close(loss, want, equal_nan=True)
    assert not any(gradient.any() for gradient in gradients)


def test_no_rows():
    hidden, weight, none = torch.randn(0, 4), torch.randn(6, 4), torch.empty(0, dtype=torch.int64)
    wanted = [True, True, False]
    loss, of_hidden, of_weight, _ = linear_cross_entropy(
        hidden, weight, None, none, torch.ones(()), wanted=wanted
    )
    assert loss.isnan()
    assert of_hidden.shape == (0, 4)
    assert not of_weight.any()


def test_what_is_not_wanted_is_not_computed():
    hidden, weight, bias = torch.randn(5, 4), torch.randn(6, 4), torch.randn(6)
    target = torch.tensor([0, 1, 2, 3, 5])
    whole = linear_cross_entropy(hidden, weight, bias, target, torch.ones(()))
    for place in range(3):
        wanted = [other == place for other in range(3)]
        some = linear_cross_entropy(hidden, weight, bias, target, torch.ones(()), wanted=wanted)
        assert [bool(each.numel()) for each in some[1:]] == wanted
        assert torch.equal(some[place + 1], whole[place + 1])
    alone = linear_cross_entropy(hidden, weight, bias, target, None)
    assert torch.equal(alone[0], whole[0])
    assert not any(each.numel() for each in alone[1:])


def test_in_half_precision_the_sum_over_chunks_is_rounded_once(monkeypatch):
    torch.manual_seed(0)
    hidden, weight = torch.randn(600, 8).bfloat16(), torch.randn(5, 8).bfloat16()
    target, seed = torch.randint(5, (600,)), torch.ones(())
    grad = right(hidden, weight, None, target, seed, reduction="sum")[2]

    def error() -> float:
        wanted = [False, True, False]
        got = linear_cross_entropy(hidden, weight, None, target, seed, None, 2, wanted=wanted)[2]
        return ((got.double() - grad).norm() / grad.norm()).item()

    in_chunks = error()  # two hundred
    monkeypatch.setitem(op.LEAST_ROWS, "cpu", 600)
    assert in_chunks < 1.5 * error()


def _peak(call: Any) -> int:
    """The most bytes that a call had allocated at one time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        call()
    assert found.profiler is not None
    assert found.profiler.kineto_results is not None
    events = [one for one in found.profiler.kineto_results.events() if one.name() == "[memory]"]
    changes = [one.nbytes() for one in sorted(events, key=lambda one: one.start_ns())]
    return max(accumulate(changes))


def test_neither_logits_nor_their_gradient_are_whole(monkeypatch):
    monkeypatch.setitem(op.LEAST_ROWS, "cpu", 32)
    hidden, weight = torch.randn(1024, 16), torch.randn(2000, 16)
    target, wanted = torch.randint(2000, (1024,)), [True, True, False]
    logits = 1024 * 2000 * 4

    def separate() -> None:
        leaves = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        F.cross_entropy(F.linear(*leaves), target).backward()

    def ours() -> Any:
        return linear_cross_entropy(hidden, weight, None, target, torch.ones(()), wanted=wanted)

    ours()
    assert _peak(separate) > 2 * logits
    kept = 4 * (hidden.numel() + weight.numel())
    assert kept < _peak(ours) < kept + logits // 16


def test_chunks_have_about_as_many_rows_each(monkeypatch):
    monkeypatch.setitem(op.LEAST_ROWS, "cpu", 128)
    monkeypatch.setattr(op, "CHUNK_BYTES", 31 << 20)
    assert rows_at_once(256, 50257, 4) == 128  # 31 MiB are 161
    assert rows_at_once(512, 30522, 4) == 256  # 266
    assert rows_at_once(512, 8000, 4) == 512
    assert rows_at_once(4096, 50257, 4) == 158
    assert rows_at_once(200, 128256, 4) == 200  # not less than 128 each
    assert rows_at_once(4096, 128256, 2, "cuda") == 1024
    assert rows_at_once(0, 10, 4) == 1


def test_the_sums_do_not_depend_on_the_number_of_threads():
    hidden, weight = torch.randn(64, 32), torch.randn(300, 32)
    target, wanted = torch.randint(300, (64,)), [True, True, False]
    arguments = (hidden, weight, None, target, torch.ones(()), None, 1, -100, 0.0, 0.0, False)
    one = linear_cross_entropy(*arguments, wanted)
    try:
        torch.set_num_threads(2)
        two = linear_cross_entropy(*arguments, wanted)
    finally:
        torch.set_num_threads(1)
    assert support.same_bits(one[0], two[0])


BAD = {
    "one dtype": {"weight": torch.randn(6, 4).double()},
    r"hidden is \(N, H\)": {"weight": torch.randn(6, 5)},
    r"bias is \(C,\)": {"bias": torch.randn(5)},
    r"targets are \(N,\)": {"target": torch.zeros(5)},
    "grad_loss has": {"grad_loss": torch.ones(5)},
    "class weights are": {"class_weight": torch.ones(5)},
    "reduction is": {"reduction": 3},
    "label_smoothing is": {"label_smoothing": 1.5},
    "softcap is": {"softcap": -1.0},
    "there is no bias": {"bias": None},
}


@pytest.mark.parametrize("message", BAD)
def test_refused_arguments(message):
    arguments: dict[str, Any] = {
        "hidden": torch.randn(5, 4),
        "weight": torch.randn(6, 4),
        "bias": torch.randn(6),
        "target": torch.zeros(5, dtype=torch.int64),
        "grad_loss": torch.ones(()),
    }
    linear_cross_entropy(**arguments)
    with pytest.raises(RuntimeError, match=message):
        linear_cross_entropy(**{**arguments, **BAD[message]})


def test_a_target_that_is_no_class_raises():
    arguments = (torch.randn(5, 4), torch.randn(6, 4), None)
    for target in (torch.tensor([0, 1, 2, 3, 6]), torch.tensor([0, 1, 2, 3, -1])):
        for weight in (None, torch.ones(6)):
            with pytest.raises(IndexError, match="out of bounds"):
                linear_cross_entropy(*arguments, target, None, weight)


def test_opcheck():
    hidden, weight, bias = torch.randn(5, 4), torch.randn(6, 4), torch.randn(6)
    arguments = (hidden, weight, bias, torch.zeros(5, dtype=torch.int64), torch.ones(()))
    torch.library.opcheck(linear_cross_entropy, arguments, test_utils=SOME)
    torch.library.opcheck(linear_cross_entropy, (*arguments[:4], None), test_utils=SOME)


SOME = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
