from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from tests import support
from torchgraph.ir import text
from torchgraph.ir.program import Program, made_by, provenance

aten = torch.ops.aten


def step(weight: Any, x: Any, lr: Any) -> Sequence[Any]:
    table = aten.mul.Tensor(x, torch.tensor([[0.5, -0.0]] * 3))
    highest = aten.max.dim(aten.t.default(table), -1)
    wide = aten._to_copy.default(highest[0], dtype=torch.float64)
    large = aten.slice.Tensor(torch.arange(12.0).view(3, 4), 0, 1, None)
    draws = aten.rand.default([2], dtype=torch.bfloat16, device=torch.device("cpu"))
    return wide, (highest[1], None, 7, large), draws, aten.sub.Tensor(weight, x, alpha=lr * 2)


def flat(weight: Any, x: Any, lr: Any) -> Sequence[Any]:
    wide, inner, draws, new = step(weight, x, lr)
    return wide, *inner, draws, new


def small() -> Program:
    return support.build(flat, torch.randn(3, 2), torch.randn(3, 2), 0.5, updates=("weight",))


def test_golden() -> None:
    program = small()
    first, second, third = program.signature.inputs
    inputs = (first, replace(second, alias_of="weight"), third)
    program.signature = replace(program.signature, inputs=inputs)
    node = support.find(program, aten.mul.Tensor)
    node.meta["provenance"] = made_by(provenance(node), "fold")
    support.assert_golden("text", text.render(program))


def test_equal_programs_give_equal_text() -> None:
    one, other = small(), small()
    assert text.render(one) == text.render(other) == text.render(one.copy())
    assert "0x" not in text.render(one)


def test_constants_tell_programs_apart() -> None:
    def with_table(scale: float) -> Program:
        table = torch.arange(100.0) * scale
        return support.build(lambda x: (aten.add.Tensor(x, table),), torch.randn(100))

    assert text.render(with_table(1.0)) == text.render(with_table(1.0))
    assert text.render(with_table(1.0)) != text.render(with_table(2.0))


def test_window_marks_the_node() -> None:
    program = small()
    shown = text.window(program, support.find(program, aten.max.dim), radius=1).splitlines()
    assert [line[0] for line in shown] == [" ", ">", " "]
    assert "aten.max.dim" in shown[1]


def test_window_without_a_node_is_the_end() -> None:
    shown = text.window(small(), None, radius=2).splitlines()
    assert len(shown) == 3
    assert shown[-1].strip() == ")"


def test_one_line_per_node() -> None:
    program = small()
    owners = [node for node, _ in text.lines(program) if node is not None]
    assert owners == list(program.nodes)
