"""Programs with predicates: put into what a Graph captures, as a recorder would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from torchgraph import ops
from torchgraph.calls import compiler
from torchgraph.capture.program_of import program_of
from torchgraph.ir import values
from torchgraph.ir.program import Program
from torchgraph.ir.rewriter import Rewriter


def add_expect(program: Program, node: fx.Node, expected: torch.Tensor) -> fx.Node:
    """A predicate about ``node``, right behind it."""
    edit = Rewriter(program, "test")
    constant = edit.constant(expected, "expected", before=node.next, like=node)
    return edit.call(ops.expect, (node, constant), before=constant.next, like=node)


def add_expect_shape(program: Program, node: fx.Node, *shape: int) -> fx.Node:
    """As a recorder writes an op whose size depends on data: the recorded size, and a predicate."""
    edit = Rewriter(program, "test")
    value = node.meta["val"]
    mode = values.mode_of(program)
    later = False
    with values.neutral(), mode:
        node.meta["val"] = torch.empty(shape, dtype=value.dtype, device=value.device)
    for other in program.nodes:
        if later and other.op == "call_function" and not values.sized_by_data(other):
            with values.neutral():
                args, kwargs = values.with_values((other.args, dict(other.kwargs)))
                other.meta["val"] = values.evaluate(mode, other.target, args, kwargs)
        later = later or other is node
    return edit.call(ops.expect_shape, (node, list(shape)), before=node.next, like=node)


@pytest.fixture
def edited(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Program], Any]], None]:
    """``edited(edit)``: each program that a Graph makes from then on is handed to ``edit``."""

    def use(edit: Callable[[Program], Any]) -> None:
        def edited_program_of(*args: Any, **kwargs: Any) -> Any:
            captured = program_of(*args, **kwargs)
            edit(captured.program)
            return captured

        monkeypatch.setattr(compiler, "program_of", edited_program_of)

    return use
