from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from tests import support
from torchgraph.ir.program import Phase, Program, provenance
from torchgraph.passes import CommonSubexpressions

aten = torch.ops.aten
X = torch.randn(3, 3)


def repeated(x: Any) -> Sequence[Any]:
    left = aten.mm.default(aten.t.default(x), x)
    right = aten.mm.default(aten.t.default(x), x)
    return aten.sin.default(left), aten.cos.default(right)


def different(x: Any) -> Sequence[Any]:
    return (
        aten.mul.Tensor(aten.add.Tensor(x, 1), aten.add.Tensor(x, 1.0)),
        aten.sub.Tensor(aten.mul.Tensor(x, 0.0), aten.mul.Tensor(x, -0.0)),
        aten.sum.dim_IntList(x, [0]),
        aten.sum.dim_IntList(x, [0], True),
    )


def test_match() -> None:
    program = support.build(repeated, X)
    done, edits = support.apply(CommonSubexpressions(), program)
    support.assert_golden("cse", support.before_and_after(program, done))
    assert edits == 2


def test_no_match() -> None:
    support.assert_unchanged(CommonSubexpressions(), support.build(different, X))


def test_effects_kept() -> None:
    def step(x: Any) -> Sequence[Any]:
        return (aten.sub.Tensor(aten.rand_like.default(x), aten.rand_like.default(x)),)

    support.assert_unchanged(CommonSubexpressions(), support.build(step, X))


def test_idempotent() -> None:
    done, _ = support.apply(CommonSubexpressions(), support.build(repeated, X))
    support.assert_unchanged(CommonSubexpressions(), done)


def test_parity() -> None:
    for step in (repeated, different):
        program = support.build(step, X)
        done, _ = support.apply(CommonSubexpressions(), program)
        support.assert_parity(program, done, X)


def test_two_outputs_keep_their_own_memory() -> None:
    def step(x: Any) -> Sequence[Any]:
        return aten.sin.default(x), aten.t.default(aten.sin.default(x))

    support.assert_unchanged(CommonSubexpressions(), support.build(step, X))


def test_an_output_and_a_temporary_merge() -> None:
    def step(x: Any) -> Sequence[Any]:
        hidden = aten.cos.default(aten.sin.default(x))
        return hidden, aten.sin.default(x)

    program = support.build(step, X)
    done, edits = support.apply(CommonSubexpressions(), program)
    support.assert_parity(program, done, X)
    assert edits == 1


def test_a_state_and_a_result_keep_their_own_memory() -> None:
    def step(weight: Any) -> Sequence[Any]:
        return aten.mul.Tensor(weight, 2), aten.mul.Tensor(weight, 2)

    program = support.build(step, X, updates=("weight",))
    support.assert_unchanged(CommonSubexpressions(), program)


def test_multiple_results() -> None:
    def step(x: Any) -> Sequence[Any]:
        first, second = aten.max.dim(x, 0), aten.max.dim(x, 0)
        return aten.neg.default(first[0]), aten.neg.default(second[0]), aten.neg.default(second[1])

    program = support.build(step, X)
    done, _ = support.apply(CommonSubexpressions(), program)
    support.assert_parity(program, done, X)
    assert support.targets(done).count("max.dim") == 1


def second_half_in_backward(program: Program) -> Program:
    calls = [node for node in program.nodes if node.op == "call_function"]
    for node in calls[len(calls) // 2 :]:
        node.meta["provenance"] = replace(provenance(node), phase=Phase.BACKWARD)
    return program


def test_recomputation_in_the_backward_stays() -> None:
    def step(x: Any) -> Sequence[Any]:
        forward = aten.neg.default(aten.sin.default(x))
        return forward, aten.cos.default(aten.sin.default(x))

    program = second_half_in_backward(support.build(step, X))
    support.assert_unchanged(CommonSubexpressions(), program)


def test_views_merge_across_phases() -> None:
    def step(x: Any) -> Sequence[Any]:
        forward = aten.neg.default(aten.t.default(x))
        return forward, aten.cos.default(aten.t.default(x))

    program = second_half_in_backward(support.build(step, X))
    done, edits = support.apply(CommonSubexpressions(), program)
    support.assert_parity(program, done, X)
    assert edits == 1
