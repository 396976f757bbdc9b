"""The bindings that programs call: quicker than the op itself, and proven to reach it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests import support
from torchgraph.lower.write.calls import Calls

aten = torch.ops.aten


def chosen(step: Any, *examples: Any) -> list[Any]:
    program = support.build(step, *examples)
    calls = Calls()
    return [calls.best(node) for node in program.nodes if node.op == "call_function"]


def test_a_function_that_reaches_the_op_is_taken() -> None:
    def step(x: Any) -> Sequence[Any]:
        return [aten.add.Tensor(x, 1.0)]

    assert chosen(step, torch.randn(3)) == [torch.add]


def test_a_function_that_chooses_another_overload_is_not() -> None:
    def step(x: Any) -> Sequence[Any]:
        return [aten.sum.default(x), aten.mean.dim(x, [0])]

    assert chosen(step, torch.randn(3)) == [torch.sum, torch.mean]

    def other(x: Any) -> Sequence[Any]:
        return [aten.add.Scalar(x, 1.0)]  # torch.add wraps the number: another op

    assert chosen(other, torch.randn(3)) == [aten.add.Scalar._op]


def test_an_op_without_a_binding_is_called_itself() -> None:
    def step(x: Any) -> Sequence[Any]:
        return [aten.threshold_backward.default(x, x, 0)]

    assert chosen(step, torch.randn(3)) == [aten.threshold_backward.default._op]
