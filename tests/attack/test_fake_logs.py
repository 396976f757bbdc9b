"""What torch logs of fake tensors is of no use to users: it stays away, but for their own."""

import logging
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import torchgraph as tg
from torchgraph._torch import FakeTensorMode
from torchgraph.errors import PassFailed
from torchgraph.ir.program import Program
from torchgraph.ir.rewriter import Rewriter

aten = torch.ops.aten


@dataclass(frozen=True)
class WrongShapes(tg.passes.Pass):
    """Adds a product whose fake kernel refuses its arguments."""

    name: ClassVar[str] = "wrong_shapes"

    def exact(self, program: Program) -> bool:
        return True

    def apply(self, program: Program, edit: Rewriter) -> None:
        for node in list(program.nodes):
            if node.target is aten.sin.default:
                edit.call(aten.mm.default, (node.args[0],) * 2, before=node, like=node)


def test_a_fake_op_that_fails_is_not_logged(caplog):
    graph = tg.Graph.trace(lambda x: x.sin())
    graph.config.passes.insert(WrongShapes())
    graph(torch.ones(2, 3))
    with caplog.at_level(logging.DEBUG), pytest.raises(PassFailed, match="wrong_shapes"):
        graph(torch.ones(2, 3))
    assert [record for record in caplog.records if record.name.startswith("torch")] == []


def test_the_users_own_fake_modes_are_heard(caplog):
    tg.Graph.trace(lambda x: x.sin())(torch.ones(2))
    with FakeTensorMode(), pytest.raises(RuntimeError):
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))
    assert "failed while attempting to run meta" in caplog.text
