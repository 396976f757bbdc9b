"""Where a program for a GPU pauses. The programs compute on fake CUDA tensors."""

from typing import Any

import torch

from tests.lower.test_scan import CUDA, program
from torchgraph import ops
from torchgraph.lower.halves.scan import scan
from torchgraph.lower.pauses import with_pauses

aten = torch.ops.aten
INT = torch.int64
TRUE = torch.tensor(True)


def order(function: Any, *inputs: Any) -> list[str]:
    """The comparisons, the pauses, and what else reads the names below, in the program's order."""
    paused = with_pauses(program(function, *inputs))
    shown = {
        ops.differs: "compare",
        ops.expect_none: "pause",
        aten.embedding.default: "embedding",
        aten.exp.default: "exp",
        aten.add.Tensor: "add",
    }
    return [shown[node.target] for node in paused.nodes if node.target in shown]


def test_one_pause_at_the_end_for_all_that_nothing_waits_for():
    def step(x, y):
        ops.expect((x > 0).any(), TRUE)
        z = x.exp()
        ops.expect((z > 1).any(), TRUE)
        return z + y

    found = order(step, (CUDA, (3,)), (CUDA, (3,)))
    assert found == ["compare", "exp", "compare", "add", "pause"]


def test_a_pause_before_an_index_that_could_be_out_of_range():
    def step(x, index, table):
        ops.expect((index < 3).all(), TRUE)
        z = x.exp()
        found = aten.embedding(table, index)
        ops.expect((found > 1).any(), TRUE)
        return found + z

    found = order(step, (CUDA, (4,)), (CUDA, (3,), INT), (CUDA, (5, 4)))
    assert found == ["compare", "exp", "pause", "embedding", "compare", "add", "pause"]


def test_an_index_before_all_predicates_waits_for_none():
    def step(table, index):
        z = aten.embedding(table, index)
        ops.expect((z > 1).any(), TRUE)
        return z + 1

    found = order(step, (CUDA, (5, 4)), (CUDA, (3,), INT))
    assert found == ["embedding", "compare", "add", "pause"]


def test_a_pause_keeps_the_lines():
    def step(x):
        ops.expect((x > 0).any(), TRUE)
        return x + 1

    plain = program(step, (CUDA, (3,)))
    (predicate,) = [node for node in plain.nodes if node.target is ops.expect]
    compared = [node for node in with_pauses(plain).nodes if node.target is ops.differs]
    lines = [node.meta["provenance"].line for node in (predicate, *compared)]
    assert lines[0] == lines[1]
    assert any(node.target is ops.expect for node in plain.nodes), "the program itself stays"


def test_what_allows_a_cuda_graph():
    def reads(x):
        ops.expect((x > 0).any(), TRUE)
        return x + 1

    def sized(x):
        ops.expect_shape(x, [3])
        return x + 1

    assert scan(program(reads, (CUDA, (3,))), CUDA) == ()
    (refusal,) = scan(program(sized, (CUDA, (3,))), CUDA)
    assert refusal.reason == "the host waits for a value that Python has read"


def test_a_pause_before_an_op_that_asserts():
    def bernoulli(p):
        ops.expect((p >= 0).all(), TRUE)
        return torch.bernoulli(p)

    def scatter(x, mask, source):
        ops.expect(mask.sum() == 3, TRUE)
        return aten.masked_scatter(x, mask, source)

    inputs = {
        bernoulli: [(CUDA, (3,))],
        scatter: [(CUDA, (5,)), (CUDA, (5,), torch.bool), (CUDA, (3,))],
    }
    for function, given in inputs.items():
        paused = with_pauses(program(function, *given))
        targets = [node.target for node in paused.nodes if node.op == "call_function"]
        assert targets[-2] is ops.expect_none
