from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

from tests import support
from torchgraph.ir.program import Program, Refusal
from torchgraph.passes import FuseCastScale
from torchgraph.passes.fusions.cast_scale import rule
from torchgraph.testing import Setup, assert_parity

aten = torch.ops.aten
HALF, SCALE = torch.randn(4, 5).bfloat16(), torch.tensor(0.3)
FUSE = FuseCastScale(least_size=0)
CAST = {"dtype": torch.float32}


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the op were compiled here; what runs is whatever there is."""
    monkeypatch.setattr(rule, "has_kernel", lambda op, device: True)


def unscale(x: Any, scale: Any) -> Sequence[Any]:
    halved = aten.mul.Tensor(aten._to_copy.default(x, **CAST), 0.5)
    return (aten.mul.Tensor(halved, scale),)


def without_number(x: Any, scale: Any) -> Sequence[Any]:
    return (aten.mul.Tensor(scale, aten._to_copy.default(x, **CAST)),)


def of_a_cast_scale(x: Any, scale: Any) -> Sequence[Any]:
    small = aten._to_copy.default(aten._to_copy.default(scale, dtype=torch.bfloat16), **CAST)
    return (aten.mul.Tensor(aten._to_copy.default(x, **CAST), small),)


CASES: list[Callable[..., Sequence[Any]]] = [unscale, without_number, of_a_cast_scale]
INPUTS = {
    "bfloat16": HALF,
    "float16": HALF.half(),
    "transposed": HALF.t(),
    "gaps": HALF[:, ::2],
    "special": torch.tensor([0.0, -0.0, float("inf"), float("nan"), 3e38, 1e-40]).bfloat16(),
    "empty": torch.zeros(0, 3, dtype=torch.float16),
}


def test_match() -> None:
    program = support.build(unscale, HALF, SCALE)
    done, edits = support.apply(FUSE, program)
    support.assert_golden("fuse_cast_scale", support.before_and_after(program, done))
    assert edits == 1


def test_no_match() -> None:
    def step(x: Any, scale: Any, rows: Any) -> Sequence[Any]:
        cast = aten._to_copy.default(x, **CAST)
        return (
            aten.mul.Tensor(cast, 0.5),
            aten.mul.Tensor(aten._to_copy.default(x, **CAST), rows),
            aten.mul.Tensor(rows, scale),
            aten.div.Tensor(aten._to_copy.default(x, **CAST), scale),
        )

    program = support.build(step, HALF, SCALE, torch.randn(4, 1))
    support.assert_unchanged(FUSE, program)
    assert refusals(program) == []


def test_effects_kept() -> None:
    def step(x: Any, scale: Any) -> Sequence[Any]:
        noise = aten.rand_like.default(x)
        scaled = aten.mul.Tensor(aten._to_copy.default(noise, **CAST), scale)
        return aten.rand_like.default(x), scaled

    program = support.build(step, HALF, SCALE)
    done, edits = support.apply(FUSE, program)
    assert edits == 1
    assert support.targets(done) == ["rand_like", "cast_scale", "rand_like"]
    support.assert_parity(program, done, HALF, SCALE)


@pytest.mark.parametrize("step", CASES)
def test_idempotent(step: Callable[..., Sequence[Any]]) -> None:
    done, _ = support.apply(FUSE, support.build(step, HALF, SCALE))
    support.assert_unchanged(FUSE, done)


@pytest.mark.parametrize("step", CASES)
@pytest.mark.parametrize("name", INPUTS)
def test_parity(step: Callable[..., Sequence[Any]], name: str) -> None:
    program = support.build(step, INPUTS[name], SCALE)
    done, edits = support.apply(FUSE, program)
    assert edits == 1
    assert FUSE.exact(program)
    support.assert_parity(program, done, INPUTS[name], SCALE)


# --- what it leaves alone ------------------------------------------------------------------------


def read_elsewhere(x: Any, scale: Any) -> Sequence[Any]:
    cast = aten._to_copy.default(x, **CAST)
    return aten.mul.Tensor(cast, scale), aten.sum.default(cast)


def product_read_elsewhere(x: Any, scale: Any) -> Sequence[Any]:
    halved = aten.mul.Tensor(aten._to_copy.default(x, **CAST), 0.5)
    return aten.mul.Tensor(halved, scale), aten.sum.default(halved)


def to_double(x: Any, scale: Any) -> Sequence[Any]:
    return (aten.mul.Tensor(aten._to_copy.default(x, dtype=torch.float64), scale),)


def by_a_double(x: Any, scale: Any) -> Sequence[Any]:
    double = aten.select.int(torch.tensor([0.3], dtype=torch.float64), 0, 0)
    return (aten.mul.Tensor(aten._to_copy.default(x, **CAST), double),)


def restrided(x: Any, scale: Any) -> Sequence[Any]:
    cast = aten._to_copy.default(x, **CAST, memory_format=torch.contiguous_format)
    return (aten.mul.Tensor(cast, scale),)


REFUSED = {
    read_elsewhere: "something else reads the cast",
    product_read_elsewhere: "something else reads the cast",
    to_double: "the cast is not from half precision to float32",
    by_a_double: "the scale is of another dtype or on another device",
    restrided: "the cast changes more than the dtype",
}


@pytest.mark.parametrize("step", REFUSED)
def test_refused(step: Callable[..., Sequence[Any]]) -> None:
    program = support.build(step, HALF, SCALE)
    support.assert_unchanged(FUSE, program)
    assert [refusal.reason for refusal in refusals(program)] == [REFUSED[step]]


def test_refused_where_the_op_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "has_kernel", lambda op, device: False)
    program = support.build(unscale, HALF, SCALE)
    support.assert_unchanged(FUSE, program)
    (refusal,) = refusals(program)
    assert refusal.reason == "no kernel of cast_scale is compiled for cpu"


def test_one_product_of_few_numbers_is_refused() -> None:
    program = support.build(without_number, HALF, SCALE)
    done, edits = support.apply(FuseCastScale(), program)
    assert edits == 0
    (refusal,) = done.history[-1].refusals
    assert refusal.reason == "a cast and one product of so few numbers are as fast as the op"

    program = support.build(without_number, torch.zeros(131_072, dtype=torch.float16), SCALE)
    assert support.apply(FuseCastScale(), program)[1] == 1


def test_a_number_of_the_optimizer_is_no_literal() -> None:
    def step(x: Any, scale: Any, lr: Any) -> Sequence[Any]:
        return (aten._to_copy.default(x, **CAST) * lr * scale,)

    support.assert_unchanged(FUSE, support.build(step, HALF, SCALE, 0.1))


# --- in a Graph ----------------------------------------------------------------------------------


class Scaled(nn.Module):
    """A bfloat16 layer whose output is scaled in float32 by what a buffer holds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3, dtype=torch.bfloat16)
        self.register_buffer("scale", torch.tensor(0.7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.bfloat16()).float() * 0.25 * self.scale


def scaled() -> Setup:
    model = Scaled()

    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x), y)

    return Setup(model, SGD(model.parameters(), lr=0.1), loss)


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    source = torch.Generator().manual_seed(1)
    for _ in range(5):
        yield torch.randn(5, 6, generator=source), torch.randint(3, (5,), generator=source)


def test_five_steps_are_bitwise_eager() -> None:
    graph = assert_parity(
        scaled, list(batches()), configure=lambda config: config.allow_fuse_cast_scale()
    )
    (record,) = [one for one in graph.report().passes if one.name == "fuse_cast_scale"]
    assert record.edits == 1
    assert record.exact


def refusals(program: Program) -> list[Refusal]:
    done, _ = support.apply(FUSE, program)
    return list(done.history[-1].refusals)
