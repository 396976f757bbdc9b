"""The gradient of a tied table: rows are added to the other gradient where they belong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from tests import support
from torchgraph.lower.inductor import job
from torchgraph.passes import ScatterEmbedding
from torchgraph.testing import Setup, assert_parity

aten = torch.ops.aten
SCATTER = ScatterEmbedding()
TABLE, ROWS, IDS = 9, torch.randn(2, 3, 4), torch.tensor([[0, 3, 3], [8, 0, 3]])
LEFT, RIGHT = torch.randn(TABLE, 5), torch.randn(5, 4)
INPUTS = LEFT, RIGHT, ROWS, IDS


def looked_up(rows: Any, ids: Any, padding: int = -1, by_frequency: bool = False) -> Any:
    return aten.embedding_dense_backward.default(rows, ids, TABLE, padding, by_frequency)


def tied(left: Any, right: Any, rows: Any, ids: Any) -> Sequence[Any]:
    return (aten.add.Tensor(aten.mm.default(left, right), looked_up(rows, ids)),)


def padded(left: Any, right: Any, rows: Any, ids: Any) -> Sequence[Any]:
    return (aten.add.Tensor(looked_up(rows, ids, 3), aten.mm.default(left, right)),)


def test_match() -> None:
    program = support.build(padded, *INPUTS)
    done, edits = support.apply(SCATTER, program)
    support.assert_golden("scatter_embedding", support.before_and_after(program, done))
    assert edits == 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("step", [tied, padded])
def test_parity_within_rounding(step: Any, dtype: torch.dtype) -> None:
    inputs = (*INPUTS[:3], IDS.to(dtype))
    program = support.build(step, *inputs)
    done, edits = support.apply(SCATTER, program)
    assert edits == 1
    (expected,), (found,) = program.gm(*inputs), done.gm(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    support.assert_unchanged(SCATTER, done)


def scaled(left: Any, right: Any, rows: Any, ids: Any) -> Sequence[Any]:
    return (aten.add.Tensor(aten.mm.default(left, right), looked_up(rows, ids), alpha=2),)


def by_frequency(left: Any, right: Any, rows: Any, ids: Any) -> Sequence[Any]:
    return (aten.add.Tensor(aten.mm.default(left, right), looked_up(rows, ids, -1, True)),)


def small(left: Any, right: Any, rows: Any, ids: Any) -> Sequence[Any]:
    both = [aten.cat.default([one, one]) for one in (rows, ids)]
    return (aten.add.Tensor(aten.mm.default(left, right), looked_up(*both)),)


def read_twice(left: Any, right: Any, rows: Any, ids: Any) -> Sequence[Any]:
    other = aten.mm.default(left, right)
    return aten.add.Tensor(other, looked_up(rows, ids)), aten.neg.default(other)


def viewed(left: Any, right: Any, rows: Any, ids: Any) -> Sequence[Any]:
    other = aten.t.default(aten.mm.default(aten.t.default(right), aten.t.default(left)))
    return (aten.add.Tensor(other, looked_up(rows, ids)),)


def twice(left: Any, right: Any, rows: Any, ids: Any) -> Sequence[Any]:
    found = looked_up(rows, ids)
    return (aten.add.Tensor(found, found),)


def test_what_is_added_to_itself_is_no_match() -> None:
    support.assert_unchanged(SCATTER, support.build(twice, *INPUTS))


@pytest.mark.parametrize(
    ("step", "word"),
    [
        (scaled, "scales"),
        (by_frequency, "how often"),
        (small, "as many rows"),
        (read_twice, "something else reads"),
        (viewed, "memory of something else"),
    ],
)
def test_what_is_left_alone_and_why(step: Any, word: str) -> None:
    program = support.build(step, *INPUTS)
    done, edits = support.apply(SCATTER, program)
    assert edits == 0
    (refusal,) = done.history[-1].refusals
    assert word in refusal.reason


class Tied(nn.Module):
    """A head that reads the table which is looked up."""

    def __init__(self, padding: int | None) -> None:
        super().__init__()
        self.table = nn.Embedding(TABLE, 4, padding_idx=padding)
        self.head = nn.Linear(4, TABLE, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.table(ids)))


@pytest.mark.skipif(job.cpp_compiler() is None, reason="Inductor needs a C++ compiler")
@pytest.mark.slow
@pytest.mark.parametrize("padding", [None, 3])
def test_compiled_steps(padding: int | None, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TORCHGRAPH_CACHE_DIR", str(tmp_path))

    def make() -> Setup:
        model = Tied(padding)
        loss = nn.CrossEntropyLoss()
        return Setup(
            model,
            AdamW(model.parameters(), lr=0.01),
            lambda m, x: loss(m(x).flatten(0, 1), x.flatten()),
        )

    graph = assert_parity(
        make,
        [(IDS.roll(shift),) for shift in range(5)],
        rtol=1e-5,
        atol=1e-6,
        configure=lambda config: config.set_backend("inductor"),
    )
    (record,) = [one for one in graph.report().passes if one.name == "scatter_embedding"]
    assert record.edits == 1
