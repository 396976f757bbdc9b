"""The mean binary cross-entropy of logits and its gradient: fuse_bce_mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

from tests import support
from torchgraph.ir.program import Program
from torchgraph.passes import FuseBCEMean
from torchgraph.passes.fusions.bce_mean import rule
from torchgraph.testing import Setup, assert_parity

aten = torch.ops.aten
_drawn = torch.Generator().manual_seed(0)  # whatever other tests draw when they are imported
X = 3 * torch.randn(4, 5, generator=_drawn)
Y = torch.rand(4, 5, generator=_drawn)
G = torch.tensor(1.7)
FUSE = FuseBCEMean()


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the ops were compiled here; what runs is whatever there is."""
    monkeypatch.setattr(rule, "has_kernel", lambda op, device: True)


def losses(x: Any, y: Any) -> Any:
    """What capture records of ``F.binary_cross_entropy_with_logits`` before the mean."""
    ones = aten.fill.Scalar(aten.empty_like.default(y), 1)
    product = aten.mul.Tensor(aten.sub.Tensor(ones, y), x)
    return aten.sub.Tensor(product, aten.log_sigmoid_forward.default(x)[0])


def gradient(x: Any, y: Any, g: Any) -> Any:
    difference = aten.sub.Tensor(aten.sigmoid.default(x), y)
    return aten.div.Scalar(aten.mul.Tensor(difference, g), x.numel())


def mean(x: Any, y: Any, g: Any) -> Sequence[Any]:
    return aten.mean.default(losses(x, y)), gradient(x, y, g)


def of_its_own_gradient(x: Any, y: Any, g: Any) -> Sequence[Any]:
    loss = aten.mean.default(losses(x, y))
    return loss, gradient(x, y, aten.mul.Tensor(aten.ones_like.default(loss), 8.0))


def without_a_gradient(x: Any, y: Any, g: Any) -> Sequence[Any]:
    product = aten.mul.Tensor(x, aten.rsub.Scalar(y, 1))
    out, _ = aten.log_sigmoid_forward.default(x)
    return (aten.mean.default(aten.sub.Tensor(product, out)),)


def of_two_losses(x: Any, y: Any, g: Any) -> Sequence[Any]:
    return *mean(x, y, g), *mean(aten.neg.default(x), y, g)


CASES: dict[Callable[..., Sequence[Any]], int] = {
    mean: 1,
    of_its_own_gradient: 1,
    without_a_gradient: 1,
    of_two_losses: 2,
}
INPUTS = {
    "contiguous": (X, Y),
    "transposed": (X.t(), Y.t()),
    "mixed": (X.t(), Y.t().contiguous()),
    "double": (X.double(), Y.double()),
    "one": (X[0, 0], Y[0, 0]),
    "empty": (X[:0], Y[:0]),
    "special": (
        torch.tensor([0.0, -0.0, 800.0, -800.0, float("inf"), -float("inf"), float("nan"), 1e-40]),
        torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.5, 0.5]),
    ),
}


def test_match() -> None:
    program = support.build(mean, X, Y, G)
    done, edits = support.apply(FUSE, program)
    support.assert_golden("fuse_bce_mean", support.before_and_after(program, done))
    assert edits == 1
    assert support.targets(done) == ["bce_with_logits_mean", "bce_with_logits_mean_backward"]


def test_no_match() -> None:
    def nothing(x: Any, y: Any, g: Any) -> Sequence[Any]:
        out, buffer = aten.log_sigmoid_forward.default(x)
        return (
            aten.mean.default(out),
            aten.mean.default(aten.sub.Tensor(aten.mul.Tensor(y, y), out)),
            buffer,
            gradient(x, y, g),
        )

    program = support.build(nothing, X, Y, G)
    support.assert_unchanged(FUSE, program)
    assert refusals(program) == []


def test_effects_kept() -> None:
    def random(x: Any, y: Any, g: Any) -> Sequence[Any]:
        noise = aten.rand_like.default(x)
        return *mean(aten.add.Tensor(x, noise), y, g), aten.rand_like.default(x)

    program = support.build(random, X, Y, G)
    done, edits = support.apply(FUSE, program)
    assert edits == 1
    assert [each for each in support.targets(done) if each == "rand_like"] == ["rand_like"] * 2
    close(program, done, X, Y, G)


@pytest.mark.parametrize("step", CASES)
def test_idempotent(step: Callable[..., Sequence[Any]]) -> None:
    done, edits = support.apply(FUSE, support.build(step, X, Y, G))
    assert edits == CASES[step]
    support.assert_unchanged(FUSE, done)


@pytest.mark.parametrize("step", CASES)
@pytest.mark.parametrize("name", INPUTS)
def test_parity(step: Callable[..., Sequence[Any]], name: str) -> None:
    x, y = INPUTS[name]
    program = support.build(step, x, y, G.to(x.dtype))
    done, edits = support.apply(FUSE, program)
    assert edits == CASES[step]
    close(program, done, x, y, G.to(x.dtype))


def close(program: Program, done: Program, *examples: Any) -> None:
    """Within rounding, random state included: the pass is not exact."""
    torch.manual_seed(0)
    wanted, state = program.gm(*examples), torch.get_rng_state()
    torch.manual_seed(0)
    got = done.gm(*examples)
    assert torch.equal(state, torch.get_rng_state())
    for left, right in zip(got, wanted, strict=True):
        torch.testing.assert_close(left, right, rtol=2e-6, atol=1e-7, equal_nan=True)
        assert left.stride() == right.stride()


# --- what it leaves alone ------------------------------------------------------------------------


def summed(x: Any, y: Any, g: Any) -> Sequence[Any]:
    return (aten.sum.default(losses(x, y)),)


def weighted(x: Any, y: Any, g: Any) -> Sequence[Any]:
    return (aten.mean.default(aten.mul.Tensor(losses(x, y), y)),)


def read_elsewhere(x: Any, y: Any, g: Any) -> Sequence[Any]:
    each = losses(x, y)
    return aten.mean.default(each), each


def part_read_elsewhere(x: Any, y: Any, g: Any) -> Sequence[Any]:
    product = aten.mul.Tensor(aten.rsub.Scalar(y, 1), x)
    each = aten.sub.Tensor(product, aten.log_sigmoid_forward.default(x)[0])
    return aten.mean.default(each), product


def weighted_positives(x: Any, y: Any, g: Any) -> Sequence[Any]:
    out = aten.log_sigmoid_forward.default(x)[0]
    weights = aten.add.Scalar(aten.mul.Tensor(y, 2.0), 1)
    product = aten.mul.Tensor(aten.rsub.Scalar(y, 1), x)
    return (aten.mean.default(aten.sub.Tensor(product, aten.mul.Tensor(out, weights))),)


def half(x: Any, y: Any, g: Any) -> Sequence[Any]:
    x, y = (aten._to_copy.default(each, dtype=torch.bfloat16) for each in (x, y))
    return (aten.mean.default(losses(x, y)),)


def other_target(x: Any, y: Any, g: Any) -> Sequence[Any]:
    return (aten.mean.default(losses(x, aten._to_copy.default(y, dtype=torch.bfloat16))),)


NOT_AVERAGED = "the losses are not averaged, or something else reads them"
REFUSED = {
    summed: NOT_AVERAGED,
    weighted: NOT_AVERAGED,
    read_elsewhere: NOT_AVERAGED,
    part_read_elsewhere: "something else reads a part of the losses",
    weighted_positives: "the losses are weighted",
    half: "half precision is rounded after each of the separate ops",
    other_target: "the target is of another shape or dtype than the logits",
}


@pytest.mark.parametrize("step", REFUSED)
def test_refused(step: Callable[..., Sequence[Any]]) -> None:
    program = support.build(step, X, Y, G)
    support.assert_unchanged(FUSE, program)
    assert refusals(program) == [REFUSED[step]]


def test_refused_where_the_op_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "has_kernel", lambda op, device: False)
    program = support.build(mean, X, Y, G)
    support.assert_unchanged(FUSE, program)
    assert refusals(program) == ["no kernel of bce_with_logits_mean is compiled for cpu"]


def by_rows(x: Any, y: Any, g: Any) -> Sequence[Any]:
    rows = aten.sum.dim_IntList(x, [1], True)
    difference = aten.sub.Tensor(aten.sigmoid.default(x), y)
    return (
        aten.mean.default(losses(x, y)),
        aten.div.Scalar(aten.mul.Tensor(difference, rows), x.numel()),
    )


def by_another_number(x: Any, y: Any, g: Any) -> Sequence[Any]:
    difference = aten.sub.Tensor(aten.sigmoid.default(x), y)
    return aten.mean.default(losses(x, y)), aten.div.Scalar(aten.mul.Tensor(difference, g), 7)


def shared(x: Any, y: Any, g: Any) -> Sequence[Any]:
    difference = aten.sub.Tensor(aten.sigmoid.default(x), y)
    back = aten.div.Scalar(aten.mul.Tensor(difference, g), x.numel())
    return aten.mean.default(losses(x, y)), back, difference


@pytest.mark.parametrize("step", [by_rows, by_another_number, shared])
def test_another_gradient_stays(step: Callable[..., Sequence[Any]]) -> None:
    program = support.build(step, X, Y, G)
    done, edits = support.apply(FUSE, program)
    assert edits == 1
    assert "bce_with_logits_mean_backward" not in support.targets(done)
    close(program, done, X, Y, G)


def test_a_sigmoid_that_is_read_elsewhere_stays() -> None:
    def accuracy(x: Any, y: Any, g: Any) -> Sequence[Any]:
        sigmoid = aten.sigmoid.default(x)
        difference = aten.sub.Tensor(sigmoid, y)
        back = aten.div.Scalar(aten.mul.Tensor(difference, g), x.numel())
        return aten.mean.default(losses(x, y)), back, sigmoid

    program = support.build(accuracy, X, Y, G)
    done, _ = support.apply(FUSE, program)
    assert sorted(support.targets(done)) == [
        "bce_with_logits_mean",
        "bce_with_logits_mean_backward",
        "sigmoid",
    ]
    close(program, done, X, Y, G)


def refusals(program: Program) -> list[str]:
    done, _ = support.apply(FUSE, program)
    return [refusal.reason for refusal in done.history[-1].refusals]


# --- in a Graph ----------------------------------------------------------------------------------


def classifier() -> Setup:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(model(x), y)

    return Setup(model, SGD(model.parameters(), lr=0.1), loss)


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    source = torch.Generator().manual_seed(1)
    for _ in range(5):
        yield torch.randn(5, 6, generator=source), torch.rand(5, 3, generator=source)


def test_five_steps_are_eager_within_rounding() -> None:
    graph = assert_parity(
        classifier,
        list(batches()),
        configure=lambda config: config.passes.insert(FuseBCEMean(), after="dce"),
        rtol=1e-5,
        atol=1e-6,
    )
    (record,) = [one for one in graph.report().passes if one.name == "fuse_bce_mean"]
    assert record.edits == 1
    assert not record.exact
