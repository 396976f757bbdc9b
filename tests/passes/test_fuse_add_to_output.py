from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from tests import support
from tests.parity.models import Matrices, batches, setup
from torchgraph.ir.program import Program, Refusal
from torchgraph.passes import FuseAddToOutput
from torchgraph.testing import assert_parity

aten = torch.ops.aten
A, B, C = torch.randn(4, 5), torch.randn(5, 6), torch.randn(4, 6)
BATCHED = torch.randn(2, 4, 5), torch.randn(2, 5, 6), torch.randn(2, 4, 6)
FUSE = FuseAddToOutput()
TOLERANCE = 1e-6  # of float32 results of order 1: one rounding of the product less


def linear_without_bias(x: Any, weight: Any, residual: Any) -> Sequence[Any]:
    product = aten.mm.default(aten.view.default(x, [6, 5]), weight)
    return (aten.add.Tensor(residual, aten._unsafe_view.default(product, [2, 3, 6])),)


def products(a: Any, b: Any, c: Any) -> Sequence[Any]:
    return (aten.add.Tensor(aten.mm.default(a, b), c),)


def batched(a: Any, b: Any, c: Any) -> Sequence[Any]:
    return (aten.add.Tensor(c, aten.bmm.default(a, b)),)


def gradients(x: Any, weight: Any) -> Sequence[Any]:
    """Three layers read one input: its gradient is a sum of three products."""
    first, second, third = (
        aten.view.default(aten.mm.default(aten.mul.Tensor(x, scale), weight), [2, 2, 6])
        for scale in (1.0, 2.0, 3.0)
    )
    return (aten.add.Tensor(aten.add.Tensor(first, second), third),)


CASES: dict[Callable[..., Sequence[Any]], tuple[torch.Tensor, ...]] = {
    linear_without_bias: (torch.randn(2, 3, 5), B, torch.randn(2, 3, 6)),
    products: (A, B, C),
    batched: BATCHED,
    gradients: (A, B),
}


def test_match() -> None:
    program = support.build(linear_without_bias, *CASES[linear_without_bias])
    done, edits = support.apply(FUSE, program)
    support.assert_golden("fuse_add_to_output", support.before_and_after(program, done))
    assert edits == 1


def test_no_match() -> None:
    def step(a: Any, b: Any, c: Any) -> Sequence[Any]:
        return (
            aten.sub.Tensor(aten.mm.default(a, b), c),
            aten.add.Tensor(aten.mm.default(a, b), 1.0),
        )

    program = support.build(step, A, B, C)
    support.assert_unchanged(FUSE, program)
    assert refusals(program) == []


def test_effects_kept() -> None:
    def step(a: Any, b: Any, c: Any) -> Sequence[Any]:
        early = aten.mm.default(a, b)
        noise = aten.rand_like.default(c)
        late = aten.mm.default(a, b)
        return aten.add.Tensor(early, noise), aten.add.Tensor(aten.rand_like.default(c), late)

    program = support.build(step, A, B, C)
    done, edits = support.apply(FUSE, program)
    assert edits == 2
    assert support.targets(done) == ["rand_like", "addmm", "rand_like", "addmm"]
    assert_close(program, done, A, B, C)


@pytest.mark.parametrize("step", CASES)
def test_idempotent(step: Callable[..., Sequence[Any]]) -> None:
    done, _ = support.apply(FUSE, support.build(step, *CASES[step]))
    support.assert_unchanged(FUSE, done)


@pytest.mark.parametrize("step", CASES)
def test_parity_within_rounding(step: Callable[..., Sequence[Any]]) -> None:
    program = support.build(step, *CASES[step])
    done, edits = support.apply(FUSE, program)
    assert edits
    assert not any(name.startswith("add.") for name in support.targets(done))
    assert_close(program, done, *CASES[step])


def test_a_sum_of_products_is_one_chain() -> None:
    done, edits = support.apply(FUSE, support.build(gradients, A, B))
    names = [name for name in support.targets(done) if name != "mul.Tensor"]
    assert names == ["mm", "addmm", "addmm", "view"]  # no view in between
    assert edits == 2


def test_what_reads_the_sum_as_a_matrix_gets_it_as_one() -> None:
    def step(x: Any, weight: Any, residual: Any) -> Sequence[Any]:
        (total,) = linear_without_bias(x, weight, residual)
        return (aten.sin.default(aten.view.default(total, [6, 6])),)

    examples = CASES[linear_without_bias]
    program = support.build(step, *examples)
    done, edits = support.apply(FUSE, program)
    assert support.targets(done) == ["view", "view", "addmm", "sin"]
    assert edits == 1
    assert_close(program, done, *examples)


def test_not_exact() -> None:
    """Why: the sum over 512 terms is rounded before the addend in one form, after it in the other.

    The same bits would be a reason to make the pass exact.
    """
    torch.manual_seed(0)
    a, b, c = torch.randn(8, 512), torch.randn(512, 8), torch.randn(8, 8)
    assert not torch.equal(torch.mm(a, b) + c, torch.addmm(c, a, b))
    assert not FUSE.exact(support.build(products, A, B, C))


# --- what it leaves alone ------------------------------------------------------------------------


def scaled(a: Any, b: Any, c: Any) -> Sequence[Any]:
    return (aten.add.Tensor(aten.mm.default(a, b), c, alpha=2),)


def twice(a: Any, b: Any, c: Any) -> Sequence[Any]:
    product = aten.mm.default(a, b)
    return (aten.add.Tensor(product, product),)


def read_elsewhere(a: Any, b: Any, c: Any) -> Sequence[Any]:
    product = aten.mm.default(a, b)
    return aten.add.Tensor(product, c), aten.sin.default(product)


def depends_on_it(a: Any, b: Any, c: Any) -> Sequence[Any]:
    product = aten.mm.default(a, b)
    return (aten.add.Tensor(product, aten.sin.default(aten.view.default(product, [4, 6]))),)


def two_addends(a: Any, b: Any, c: Any) -> Sequence[Any]:
    return (aten.add.Tensor(aten.addmm.default(c, a, b), c),)


def row(a: Any, b: Any, c: Any) -> Sequence[Any]:
    return (aten.add.Tensor(aten.mm.default(a, b), aten.select.int(c, 0, 0)),)


def widened(a: Any, b: Any, c: Any) -> Sequence[Any]:
    # The sum has the product's rank, and is not of its shape.
    product = aten.mm.default(a, b)
    return (aten.add.Tensor(product, aten.view.default(c, [1, 4, 6])),)


def of_another_dtype(a: Any, b: Any, c: Any) -> Sequence[Any]:
    return (aten.add.Tensor(aten.mm.default(a, b), aten._to_copy.default(c, dtype=torch.double)),)


def in_columns(a: Any, b: Any, c: Any) -> Sequence[Any]:
    product = aten.view.default(aten.mm.default(a, b), [2, 2, 6])
    columns = aten.transpose.int(aten.view.default(c, [2, 6, 2]), 1, 2)
    return (aten.add.Tensor(product, columns),)


def later(a: Any, b: Any, c: Any) -> Sequence[Any]:
    wide = aten.cat.default([a] * 9, 1)
    product = aten.mm.default(wide, aten.cat.default([b] * 9, 0))
    return (aten.add.Tensor(product, aten.sin.default(c)),)


REFUSED = {
    scaled: "the addition scales one of its addends",
    twice: "the product is added to itself",
    read_elsewhere: "something else reads the product",
    depends_on_it: "something else reads the product",
    two_addends: "the product adds something already, and ATen has none with two addends",
    row: "the addends differ in shape",
    widened: "the addends differ in shape",
    of_another_dtype: "the addends differ in dtype or device",
    in_columns: "the other addend is laid out differently",
    later: "the other addend comes later; until then the factors would take more memory",
}


@pytest.mark.parametrize("step", REFUSED)
def test_refused(step: Callable[..., Sequence[Any]]) -> None:
    program = support.build(step, A, B, C)
    support.assert_unchanged(FUSE, program)
    assert [refusal.reason for refusal in refusals(program)] == [REFUSED[step]]


def test_a_later_addend_is_taken_where_the_factors_live_anyway() -> None:
    def step(a: Any, b: Any, c: Any) -> Sequence[Any]:
        wide, tall = aten.cat.default([a] * 9, 1), aten.cat.default([b] * 9, 0)
        total = aten.add.Tensor(aten.mm.default(wide, tall), aten.sin.default(c))
        return total, aten.sum.default(wide), aten.sum.default(aten.t.default(tall))

    program = support.build(step, A, B, C)
    done, edits = support.apply(FUSE, program)
    assert edits == 1
    assert_close(program, done, A / 9, B, C)  # nine products of it: of order 1, as TOLERANCE says


# --- in a Graph ----------------------------------------------------------------------------------


class Residual(nn.Module):
    """Linear layers without bias on a residual stream, three of them on one input."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(6, 8)
        self.branches = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(3))
        self.leave = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x).unflatten(0, (1, -1))
        first, second, third = (branch(x) for branch in self.branches)
        return self.leave(x + torch.relu(first) * second + third).flatten(0, 1)


RESIDUAL = setup(Residual, lambda parameters: SGD(parameters, lr=0.1, momentum=0.9))


def test_ten_steps_within_rounding_of_eager() -> None:
    graph = assert_parity(
        RESIDUAL,
        batches(Matrices, 10),
        rtol=1e-5,
        atol=1e-6,
        configure=lambda config: config.allow_fuse_add_to_output(),
    )

    report = graph.report()
    (record,) = [one for one in report.passes if one.name == "fuse_add_to_output"]
    assert record.edits == 4  # one in the forward, three in the gradient of the branches' input
    assert not record.exact
    # enter's output, which the branches read too; and nothing of the optimizer's step.
    assert [refusal.reason for refusal in record.refusals] == ["something else reads the product"]


def test_off_by_default_and_again() -> None:
    graph = assert_parity(
        RESIDUAL,
        batches(Matrices, 2),
        configure=lambda config: config.allow_fuse_add_to_output(False),
    )
    assert "fuse_add_to_output" not in [one.name for one in graph.report().passes]


def refusals(program: Program) -> list[Refusal]:
    done, _ = support.apply(FUSE, program)
    return list(done.history[-1].refusals)


def assert_close(program: Program, done: Program, *examples: torch.Tensor) -> None:
    torch.manual_seed(0)
    expected = program.gm(*examples)
    torch.manual_seed(0)
    for left, right in zip(expected, done.gm(*examples), strict=True):
        torch.testing.assert_close(right, left, rtol=TOLERANCE, atol=TOLERANCE)
        assert right.stride() == left.stride()
