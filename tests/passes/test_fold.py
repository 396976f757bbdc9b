from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests import support
from torchgraph.passes import DeadCode, FoldConstants, run

aten = torch.ops.aten
X = torch.randn(3, 3)
CPU = {"device": torch.device("cpu"), "pin_memory": False}


def causal_mask(x: Any) -> Sequence[Any]:
    mask = aten.triu.default(aten.ones.default([3, 3], dtype=torch.bool, **CPU), 1)
    table = aten.mul.Tensor(torch.tensor([1.0, 2.0, 3.0]), 0.5)
    return (aten.masked_fill.Scalar(aten.add.Tensor(x, table), mask, -1.0),)


def nothing_to_do(x: Any) -> Sequence[Any]:
    fresh = aten.add.Tensor(torch.tensor([1.0, 2.0, 3.0]), 1)
    return aten.add.Tensor(x, aten.zeros.default([3], **CPU)), fresh


def test_match() -> None:
    program = support.build(causal_mask, X)
    done, edits = support.apply(FoldConstants(), program)
    done = run(done, (DeadCode(),), support.STRICT)
    support.assert_golden("fold", support.before_and_after(program, done))
    assert edits == 4
    assert support.targets(done) == ["add.Tensor", "masked_fill.Scalar"]


def test_no_match() -> None:
    support.assert_unchanged(FoldConstants(), support.build(nothing_to_do, X))


def test_effects_kept() -> None:
    def step(x: Any) -> Sequence[Any]:
        noise = aten.mul.Tensor(aten.rand.default([3], **CPU), 2)
        unset = aten.empty.memory_format([3], **CPU)
        return (aten.add.Tensor(x, noise), aten.add.Tensor(x, aten.mul.Tensor(unset, 0)))

    support.assert_unchanged(FoldConstants(), support.build(step, X))


def test_idempotent() -> None:
    done, _ = support.apply(FoldConstants(), support.build(causal_mask, X))
    support.assert_unchanged(FoldConstants(), done)


def test_parity() -> None:
    for step in (causal_mask, nothing_to_do):
        program = support.build(step, X)
        done, _ = support.apply(FoldConstants(), program)
        support.assert_parity(program, done, X)


def test_large_results_are_computed_each_time() -> None:
    support.assert_unchanged(FoldConstants(max_elements=2), support.build(causal_mask, X))


def test_numbers_of_the_optimizer_are_not_constants() -> None:
    def step(x: Any, lr: Any) -> Sequence[Any]:
        return (x * (aten.add.Tensor(torch.tensor([1.0]), lr)),)

    program = support.build(step, X, 0.1)
    done, edits = support.apply(FoldConstants(), program)
    support.assert_parity(program, done, X, 0.25)
    assert edits == 2  # the fresh copy of the literal


def test_parts_of_a_multiple_result() -> None:
    def step(x: Any) -> Sequence[Any]:
        highest = aten.max.dim(aten.reshape.default(aten.arange.default(9, **CPU), [3, 3]), 0)[0]
        return (aten.add.Tensor(x, highest),)

    program = support.build(step, X)
    done, _ = support.apply(FoldConstants(), program)
    support.assert_parity(program, done, X)
    assert support.targets(run(done, (DeadCode(),), support.STRICT)) == ["add.Tensor"]


def test_the_callers_modes_do_not_matter() -> None:
    program = support.build(causal_mask, X)
    expected, _ = support.apply(FoldConstants(), program)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode(), torch.device("meta"):
        done, _ = support.apply(FoldConstants(), program)
    assert [buffer.dtype for buffer in done.gm.buffers()] == [
        buffer.dtype for buffer in expected.gm.buffers()
    ]
    assert not any(buffer.is_inference() for buffer in done.gm.buffers())
    support.assert_parity(program, done, X)
