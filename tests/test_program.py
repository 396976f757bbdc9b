from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests import support
from torchgraph.ir import text
from torchgraph.ir.program import (
    OutputKind,
    PassRecord,
    Phase,
    Program,
    Provenance,
    Role,
    TensorMeta,
    made_by,
    provenance,
)

aten = torch.ops.aten


def step(weight: Any, x: Any, lr: Any) -> Sequence[Any]:
    return (x * 2).sum(), None, 3, weight - lr * (x + torch.tensor([1.0, 2.0]))


def small() -> Program:
    return support.build(step, torch.randn(2), torch.randn(2), 0.5, updates=("weight",))


def test_parts() -> None:
    program = small()
    assert [node.name for node in program.placeholders] == ["weight_1", "x_1", "lr_1"]
    assert program.output.op == "output"
    assert program.results[1:3] == (None, 3)
    assert [spec.kind for spec in program.signature.outputs] == [OutputKind.USER] * 3 + [
        OutputKind.UPDATE
    ]
    assert program.count() == len(support.targets(program))
    assert program.count(Phase.BACKWARD) == 0


def test_signature_lookup() -> None:
    signature = small().signature
    assert signature.by_fqn("x").role is Role.INPUT
    assert [spec.fqn for spec in signature.roles(Role.PARAMETER, Role.SCALAR)] == ["weight", "lr"]
    with pytest.raises(KeyError):
        signature.by_fqn("bias")


def test_copy_is_independent() -> None:
    program = small()
    program.history.append(PassRecord("first", 1, 0.0, 2, 1, True))
    before = text.render(program)
    copy = program.copy()
    assert text.render(copy) == before
    assert copy.history == program.history
    copy.history.clear()
    sub = support.find(copy, aten.sub.Tensor)
    sub.replace_all_uses_with(copy.placeholders[0])
    copy.gm.graph.erase_node(sub)
    sum_ = support.find(copy, aten.sum.default)
    sum_.meta["provenance"] = Provenance("other")
    assert text.render(program) == before
    assert len(program.history) == 1


def test_copy_computes_the_same() -> None:
    program = small()
    weight, x = torch.randn(2), torch.randn(2)
    support.assert_parity(program, program.copy(), weight, x, 0.5)


def test_provenance() -> None:
    program = small()
    node = support.find(program, aten.sum.default)
    assert str(provenance(node).line).startswith("model.py:2 in forward")
    assert made_by(provenance(node), "cse") == replace(provenance(node), made_by="cse")
    assert provenance(program.output) == Provenance()
    assert Provenance().line is None


def test_tensor_meta() -> None:
    meta = TensorMeta.of(torch.zeros(2, 3, dtype=torch.float64).t())
    assert (meta.shape, meta.stride, meta.nbytes) == ((3, 2), (1, 3), 48)
    assert str(meta) == "tensor(..., size=(3, 2), dtype=torch.float64)"
