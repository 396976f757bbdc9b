from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests import support
from torchgraph.ir.aliasing import alias_sources, escaping, memory_classes

aten = torch.ops.aten


def step(x: Any, y: Any) -> Sequence[Any]:
    parts = aten.split.Tensor(aten._unsafe_view.default(aten.sin.default(x), [6]), 3)
    highest = aten.max.dim(aten.view.default(y, [2, 3]), 0)
    return parts[0], parts[1], aten.t.default(x), highest[0], aten.cos.default(y)


def test_views_share_memory_through_lists_and_silent_views() -> None:
    program = support.build(step, torch.randn(2, 3), torch.randn(6))
    groups = {tuple(sorted(group)) for group in memory_classes(program)}
    assert groups == {("output 0", "output 1"), ("input x_1", "output 2")}


def test_escaping() -> None:
    program = support.build(step, torch.randn(2, 3), torch.randn(6))
    names = {node.name for node in escaping(program)}
    assert {"sin", "_unsafe_view", "split", "x_1", "max_1", "cos"} <= names
    assert not {"view", "y_1"} & names


def test_sources() -> None:
    program = support.build(step, torch.randn(2, 3), torch.randn(6))
    x, _ = program.placeholders
    assert alias_sources(support.find(program, aten.t.default)) == [x]
    assert alias_sources(support.find(program, aten.sin.default)) == []


def test_numbers_hold_no_memory() -> None:
    program = support.build(lambda lr: (lr, lr), 0.5)
    assert memory_classes(program) == ()
