from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LinearLR

import torchgraph as tg
from tests import support
from torchgraph.ir.program import Program
from torchgraph.options.options import Options
from torchgraph.passes import SparseEmbedding, pipeline

aten = torch.ops.aten
ANY = SparseEmbedding(least_ratio=0)
TABLE, GRAD = torch.randn(20, 3), torch.randn(2, 4, 3)
INDICES = torch.tensor([[1, 5, 5, 19], [0, 5, 1, 7]])


def gradient(grad: Any, indices: Any, padding: int = -1, scaled: bool = False) -> Any:
    return aten.embedding_dense_backward.default(grad, indices, 20, padding, scaled)


def sgd(table: Any, grad: Any, indices: Any, lr: Any) -> Sequence[Any]:
    return (aten.add.Tensor(table, gradient(grad, indices), alpha=-lr),)


def padded(table: Any, grad: Any, indices: Any, lr: Any) -> Sequence[Any]:
    return (aten.add.Tensor(table, gradient(grad, indices, 5), alpha=-lr),)


def dense(table: Any, grad: Any, indices: Any, lr: Any) -> Sequence[Any]:
    return (aten.add.Tensor(table, aten.sum.default(grad), alpha=-lr),)


def program(
    step: Any = sgd, table: torch.Tensor = TABLE, indices: torch.Tensor = INDICES
) -> Program:
    return support.build(step, table, GRAD.to(table.dtype), indices, 0.1, updates=("table",))


def test_match() -> None:
    before = program()
    done, edits = support.apply(ANY, before)
    support.assert_golden("sparse_embedding", support.before_and_after(before, done))
    assert edits == 1


def test_no_match() -> None:
    support.assert_unchanged(ANY, program(dense))


def test_effects_kept() -> None:
    def step(table: Any, grad: Any, indices: Any, lr: Any) -> Sequence[Any]:
        noisy = aten.mul.Tensor(grad, aten.rand_like.default(grad))
        (new,) = sgd(table, noisy, indices, lr)
        return aten.rand_like.default(grad), new

    before = program(step)
    done, edits = support.apply(ANY, before)
    assert edits == 1
    support.assert_parity(before, done, TABLE, GRAD, INDICES, 0.3)


def test_idempotent() -> None:
    done, _ = support.apply(ANY, program())
    support.assert_unchanged(ANY, done)


@pytest.mark.parametrize("step", [sgd, padded])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
def test_parity(step: Any, dtype: torch.dtype, kind: torch.dtype) -> None:
    table = TABLE.to(dtype)
    table[0, 0], table[1, 1], table[2, 2], table[5, 1] = -0.0, torch.inf, torch.nan, -0.0
    for indices in (INDICES.to(kind), INDICES.to(kind).t().contiguous().t()):
        before = program(step, table, indices)
        done, edits = support.apply(ANY, before)
        assert edits == 1
        assert ANY.exact(before)
        support.assert_parity(before, done, table, GRAD.to(dtype), indices, 0.3)


def momentum(table: Any, grad: Any, indices: Any, lr: Any) -> Sequence[Any]:
    decayed = aten.add.Tensor(gradient(grad, indices), table, alpha=0.1)
    return (aten.add.Tensor(table, decayed, alpha=-lr),)


def other_reader(table: Any, grad: Any, indices: Any, lr: Any) -> Sequence[Any]:
    made = gradient(grad, indices)
    return aten.sum.default(made), aten.add.Tensor(table, made, alpha=-lr)


def new_table_read(table: Any, grad: Any, indices: Any, lr: Any) -> Sequence[Any]:
    (new,) = sgd(table, grad, indices, lr)
    return aten.sum.default(new), new


def scaled(table: Any, grad: Any, indices: Any, lr: Any) -> Sequence[Any]:
    return (aten.add.Tensor(table, gradient(grad, indices, scaled=True), alpha=-lr),)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (momentum, "no plain step"),
        (other_reader, "something else reads the gradient"),
        (new_table_read, "something else reads the new table"),
        (scaled, "scale_grad_by_freq"),
    ],
)
def test_refusals(step: Any, reason: str) -> None:
    done, edits = support.apply(ANY, program(step))
    assert edits == 0
    (refusal,) = done.history[-1].refusals
    assert reason in refusal.reason


def test_small_and_half_tables_are_refused() -> None:
    done, edits = support.apply(SparseEmbedding(), program())
    assert edits == 0
    assert "16 rows for each index" in done.history[-1].refusals[0].reason
    done, edits = support.apply(ANY, program(table=TABLE.bfloat16()))
    assert edits == 0
    assert "half" in done.history[-1].refusals[0].reason


class Words(nn.Module):
    """A large table, a small one, and a layer without a table."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 7, padding_idx=3)
        self.kinds = nn.Embedding(5, 7)
        self.head = nn.Linear(7, 3)

    def forward(self, words: Any, kinds: Any) -> Any:
        return self.head(self.words(words).mean(1) + self.kinds(kinds))


class Train(tg.Graph):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        schedule = LinearLR(optimizer, total_iters=4)
        self.add_optimizer(optimizer, lr_sch=schedule, is_sparse=True)

    def build(self, words: Any, kinds: Any, labels: Any) -> Any:
        loss = F.cross_entropy(self.model(words, kinds), labels)
        loss.backward()
        return loss


def test_training_is_bitwise_eager() -> None:
    eager = Words()
    graph = Train(copy.deepcopy(eager))
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.5)
    schedule = LinearLR(optimizer, total_iters=4)
    for _ in range(6):
        words = torch.randint(8, (4, 9))[:, ::2]  # few words: most of them occur twice
        batch = words, torch.randint(5, (4,)), torch.randint(3, (4,))
        loss = F.cross_entropy(eager(*batch[:2]), batch[2])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        assert torch.equal(graph(*batch), loss.detach())
        for name, old in eager.state_dict().items():
            assert support.same_bits(graph.model.state_dict()[name], old), name
    record = next(r for r in graph.report().passes if r.name == "sparse_embedding")
    assert record.edits == 1
    assert record.exact
    assert "16 rows" in record.refusals[0].reason  # the table of kinds


def test_the_pipeline_has_it_on_demand() -> None:
    assert SparseEmbedding() not in pipeline(Options())
    assert SparseEmbedding() in pipeline(Options(sparse_update=True))


@pytest.mark.parametrize(
    ("optimizer", "options", "word"),
    [
        (torch.optim.Adam, {}, "Adam"),
        (torch.optim.AdamW, {}, "AdamW"),
        (torch.optim.SparseAdam, {}, "SparseAdam"),
        (torch.optim.SGD, {"momentum": 0.9}, "momentum"),
        (torch.optim.SGD, {"weight_decay": 0.1}, "weight_decay"),
        (torch.optim.SGD, {"foreach": True}, "foreach"),
        (torch.optim.SGD, {"fused": True, "maximize": True}, "maximize, fused"),
    ],
)
def test_other_optimizers_are_refused(optimizer: Any, options: dict[str, Any], word: str) -> None:
    model = Words()
    graph = tg.Graph()
    graph.model = model
    with pytest.raises(tg.errors.UnsupportedOptimizer, match=word):
        graph.add_optimizer(optimizer(model.parameters(), lr=0.1, **options), is_sparse=True)
    assert not graph.training
    assert not graph.config.options.sparse_update
