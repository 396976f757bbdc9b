from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests import support
from torchgraph.passes import Canonicalize

aten = torch.ops.aten
X = torch.randn(2, 6)


def views_and_copies(x: Any) -> Sequence[Any]:
    folded = aten.view.default(aten.view.default(x, [12]), [3, 4])
    same = aten.expand.default(aten.alias.default(aten.slice.Tensor(x, 0, 0, 2)), [2, 6])
    twice = aten.permute.default(aten.transpose.int(x, 0, 1), [1, 0])
    copied = aten.clone.default(aten._to_copy.default(twice, dtype=torch.float32))
    scaled = aten.div.Tensor(aten.mul.Tensor(same, 1), 1)
    return aten.sin.default(folded), aten.add.Tensor(copied, scaled)


def nothing_to_do(x: Any) -> Sequence[Any]:
    turned = aten.clone.default(aten.t.default(x), memory_format=torch.contiguous_format)
    wide = aten._to_copy.default(x, dtype=torch.float64)
    zero = aten.add.Tensor(x, 0)
    doubled = aten.mul.Tensor(x, 2)
    return turned, wide, aten.sin.default(zero), aten.view.default(doubled, [12])


def test_match() -> None:
    program = support.build(views_and_copies, X)
    done, edits = support.apply(Canonicalize(), program)
    support.assert_golden("canonicalize", support.before_and_after(program, done))
    assert support.targets(done) == ["view", "sin", "add.Tensor"]
    assert edits > 0


def test_no_match() -> None:
    support.assert_unchanged(Canonicalize(), support.build(nothing_to_do, X))


def test_effects_kept() -> None:
    def step(x: Any) -> Sequence[Any]:
        noise = aten.rand_like.default(aten.detach.default(x))
        return (aten.add.Tensor(aten.alias.default(noise), x),)

    program = support.build(step, X)
    done, _ = support.apply(Canonicalize(), program)
    assert support.targets(done) == ["rand_like", "add.Tensor"]
    support.assert_parity(program, done, X)


def test_profiler_marks_go() -> None:
    def step(x: Any) -> Sequence[Any]:
        with torch.profiler.record_function("update"):
            return (x + 1,)

    program = support.build(step, X)
    assert any("record_function" in name for name in support.targets(program))
    done, edits = support.apply(Canonicalize(), program)
    assert (support.targets(done), edits) == (["add.Tensor"], 2)


@pytest.mark.parametrize("step", [views_and_copies, nothing_to_do])
def test_idempotent(step: Any) -> None:
    done, _ = support.apply(Canonicalize(), support.build(step, X))
    support.assert_unchanged(Canonicalize(), done)


@pytest.mark.parametrize("step", [views_and_copies, nothing_to_do])
@pytest.mark.parametrize("example", [X, torch.tensor([[-0.0] * 6, [float("nan")] * 6])])
def test_parity(step: Any, example: torch.Tensor) -> None:
    program = support.build(step, example)
    done, _ = support.apply(Canonicalize(), program)
    support.assert_parity(program, done, example)


def edits_of(step: Any, *examples: torch.Tensor, updates: Sequence[str] = ()) -> int:
    program = support.build(step, *examples, updates=updates)
    done, edits = support.apply(Canonicalize(), program)
    support.assert_parity(program, done, *examples)
    return edits


def test_a_returned_copy_of_an_input_stays() -> None:
    assert edits_of(lambda x: (aten.clone.default(x),), X) == 0


def test_a_copy_that_reaches_an_output_through_views_stays() -> None:
    def step(x: Any) -> Sequence[Any]:
        return (aten.t.default(aten.clone.default(x)),)

    assert edits_of(step, X) == 0


def test_a_copy_that_becomes_a_state_stays() -> None:
    def step(weight: Any, average: Any) -> Sequence[Any]:
        return aten.mul.Tensor(weight, 2), aten.clone.default(weight)

    assert edits_of(step, X, X, updates=("weight", "average")) == 0


def test_two_returned_names_of_one_tensor_stay_two_tensors() -> None:
    def step(x: Any) -> Sequence[Any]:
        y = aten.sin.default(x)
        return y, aten.alias.default(y), aten.detach.default(x)

    assert edits_of(step, X) == 0


def test_a_detached_result_is_the_result() -> None:
    assert edits_of(lambda x: (aten.detach.default(aten.sin.default(x)),), X) == 1


@pytest.mark.parametrize(
    ("example", "gone"),
    [
        (torch.arange(4), True),
        (torch.randn(4), False),
        (torch.tensor([True, False]), False),
    ],
)
def test_adding_zero(example: torch.Tensor, gone: bool) -> None:
    def step(x: Any) -> Sequence[Any]:
        return (aten.neg.default(aten.add.Tensor(x, 0)),)

    assert edits_of(step, example) == int(gone)


@pytest.mark.parametrize(
    ("example", "gone"),
    [
        (torch.arange(4), True),
        (torch.randn(4), True),
        (torch.randn(4, dtype=torch.bfloat16), False),
        (torch.randn(4, dtype=torch.complex64), False),
        (torch.tensor([True, False]), False),
        (torch.randn(4, 4)[:, :2], False),
    ],
)
def test_multiplying_by_one(example: torch.Tensor, gone: bool) -> None:
    def step(x: Any) -> Sequence[Any]:
        return (aten.neg.default(aten.mul.Tensor(x, 1)),)

    assert edits_of(step, example) == int(gone)


def test_float_one_promotes_integers() -> None:
    def step(x: Any) -> Sequence[Any]:
        return (aten.neg.default(aten.mul.Tensor(x, 1.0)),)

    assert edits_of(step, torch.arange(4)) == 0


def test_a_conjugate_is_no_identity() -> None:
    def step(x: Any) -> Sequence[Any]:
        return (aten.mul.Tensor(aten.clone.default(aten._conj.default(x)), 2),)

    program = support.build(step, torch.randn(3, dtype=torch.complex64))
    done, _ = support.apply(Canonicalize(), program)
    support.assert_parity(program, done, torch.randn(3, dtype=torch.complex64))


def test_views_of_a_strided_tensor_stay() -> None:
    def step(x: Any) -> Sequence[Any]:
        rows = aten.view.default(aten.t.default(x), [6, 2, 1])
        return (aten.sin.default(aten.view.default(rows, [6, 1, 2])),)

    assert edits_of(step, X) == 0


def test_constants_stay_fresh() -> None:
    def step(x: Any) -> Sequence[Any]:
        return (x + torch.tensor([1.0, 2.0]),)

    assert edits_of(step, torch.randn(2)) == 0


def gradient_in_layout(strides: list[int]) -> Any:
    def step(x: Any) -> Sequence[Any]:
        gradient = aten.cos.default(x)
        buffer = aten.new_empty_strided.default(gradient, [2, 6], strides)
        return (aten.neg.default(aten.copy.default(buffer, gradient)),)

    return step


def test_a_gradient_that_has_its_parameters_layout_is_not_copied() -> None:
    program = support.build(gradient_in_layout([6, 1]), X)
    done, _ = support.apply(Canonicalize(), program)
    assert support.targets(done) == ["cos", "neg"]
    support.assert_parity(program, done, X)


def test_a_gradient_in_another_layout_is_copied() -> None:
    assert edits_of(gradient_in_layout([1, 2]), X) == 0


def test_a_copy_into_a_state_stays() -> None:
    def step(weight: Any, x: Any) -> Sequence[Any]:
        return (aten.copy.default(weight, x),)

    assert edits_of(step, X, X, updates=("weight",)) == 0
