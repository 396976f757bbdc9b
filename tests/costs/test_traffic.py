"""The bytes that an op reads and writes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.debug.tree_support import ProgramWriter, empty
from torchgraph.costs.traffic import traffic
from torchgraph.ir.program import Provenance, Role

aten = torch.ops.aten
ONE = 4 * 8
"""Bytes of a value."""


@pytest.mark.parametrize(
    ("target", "more", "bytes_"),
    [
        (aten.neg.default, (), 2 * ONE),
        (aten.empty_like.default, (), 0),
        (aten.new_empty.default, ([8],), 0),
        (aten.zeros_like.default, (), ONE),
        (aten.full_like.default, (2.0,), ONE),
        (aten.rand_like.default, (), ONE),
        (aten.randint_like.default, (9,), ONE),
        (aten.fill.Scalar, (2.0,), ONE),
        (aten.fill_.Scalar, (2.0,), ONE),
        (aten.zero.default, (), ONE),
        (aten.uniform.default, (), ONE),
        (aten.bernoulli.p, (0.5,), ONE),
        (aten.bernoulli.default, (), 2 * ONE),
    ],
)
def test_what_gives_its_shape_alone_is_not_read(target: Any, more: Any, bytes_: int):
    write = ProgramWriter()
    x = write.input(Role.INPUT, "x", empty(8))
    assert traffic(write.op(target, (x, *more), empty(8), Provenance())) == bytes_


def test_a_copy_reads_its_source():
    write = ProgramWriter()
    x, row = (
        write.input(Role.INPUT, name, empty(*size)) for name, size in (("x", (8,)), ("y", (1,)))
    )
    assert traffic(write.op(aten.copy.default, (x, row), empty(8), Provenance())) == ONE + 4
    assert traffic(write.op(aten.fill.Tensor, (x, row), empty(8), Provenance())) == ONE + 4
