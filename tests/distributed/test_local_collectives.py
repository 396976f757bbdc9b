"""Collectives of ranks in one process, beside torch's own simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

import torchgraph as tg
from torchgraph.distributed import local_collectives
from torchgraph.distributed.errors import RanksOutOfStep
from torchgraph.testing import run_on_ranks

OPS = torch.ops._c10d_functional


def by_torch(op: Any, inputs: Sequence[torch.Tensor], *args: Any) -> list[torch.Tensor]:
    """What torch's own simulation of ranks gives."""
    local = pytest.importorskip("torch.distributed._local_tensor", reason="torch >= 2.10")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=len(inputs), store=FakeStore())
    try:
        with local.LocalTensorMode(len(inputs)):
            given = local.LocalTensor({rank: one.clone() for rank, one in enumerate(inputs)})
            found = OPS.wait_tensor(op(given, *args, dist.group.WORLD.group_name))
        return [found._local_tensors[rank] for rank in range(len(inputs))]
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("all_reduce", {"reduce_op": "sum"}),
        ("all_reduce", {"reduce_op": "avg"}),
        ("all_reduce", {"reduce_op": "max"}),
        ("all_reduce", {"reduce_op": "product"}),
        ("all_gather_into_tensor", {"group_size": 0}),
        ("reduce_scatter_tensor", {"reduce_op": "sum", "group_size": 0}),
        ("broadcast", {"src": 1}),
    ],
    ids=str,
)
def test_a_collective_gives_what_torchs_own_simulation_gives(name, args, ranks):
    torch.manual_seed(0)
    inputs = [torch.randn(6, 5) for _ in range(ranks)]
    args = {key: ranks if key == "group_size" else value for key, value in args.items()}

    found = local_collectives.meet(name, [{"input": one, **args} for one in inputs])

    expected = by_torch(getattr(OPS, name).default, inputs, *args.values())
    for got, wanted in zip(found, expected, strict=True):
        assert torch.equal(got, wanted)


def meeting(name: str, calls: Sequence[Mapping[str, Any]]) -> list[Any]:
    return local_collectives.meet(name, calls)


def test_rows_are_exchanged_by_sizes():
    inputs = [torch.arange(4.0) + 10 * rank for rank in range(2)]
    sizes = [([1, 2], [1, 3]), ([3, 2], [2, 2])]
    calls = [
        {"input": one, "output_split_sizes": out, "input_split_sizes": into}
        for one, (out, into) in zip(inputs, sizes, strict=True)
    ]
    found = meeting("all_to_all_single", calls)
    assert [one.tolist() for one in found] == [[0.0, 10.0, 11.0], [1.0, 2.0, 3.0, 12.0, 13.0]]

    calls[1]["output_split_sizes"] = [2, 2]
    with pytest.raises(RanksOutOfStep, match="waits for 4 rows and is sent 5"):
        meeting("all_to_all_single", calls)


def test_several_travel_together_and_into_what_was_given():
    pairs = [[torch.ones(2) * rank, torch.full((3,), 2.0 + rank)] for rank in range(2)]
    found = meeting("all_reduce_coalesced_", [{"inputs": p, "reduce_op": "sum"} for p in pairs])
    assert all(got is given for got, given in zip(found, pairs, strict=True))
    assert pairs[1][0].tolist() == [1.0, 1.0]
    assert pairs[0][1].tolist() == [5.0, 5.0, 5.0]

    out = [torch.zeros(2), torch.zeros(2)]
    calls = [
        {"input": torch.full((1,), 1.0 + rank), "group_size": 2, "out": out[rank]}
        for rank in range(2)
    ]
    assert meeting("all_gather_into_tensor_out", calls)[1] is out[1]
    assert out[0].tolist() == [1.0, 2.0]


def test_what_cannot_be_scattered_and_what_nobody_knows():
    with pytest.raises(RanksOutOfStep, match="3 rows for 2 ranks"):
        meeting("reduce_scatter_tensor", [{"input": torch.ones(3), "reduce_op": "sum"}] * 2)
    with pytest.raises(NotImplementedError, match="irecv"):
        meeting("irecv", [{"input": torch.ones(3)}] * 2)


def test_groups_of_some_ranks_meet_by_themselves():
    """Two rows of two: each sums in its row, then over the first of the rows."""

    class Two(tg.Graph):
        def __init__(self, row: Any, column: Any) -> None:
            super().__init__()
            self.row, self.column = row, column

        def build(self, x: torch.Tensor) -> torch.Tensor:
            x = funcol.wait_tensor(funcol.all_reduce(x, "sum", self.row))
            return funcol.wait_tensor(funcol.all_reduce(x, "max", self.column))

    def make(rank: int) -> Any:
        rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        return Two(rows[rank // 2], columns[rank % 2]), [(torch.tensor([float(rank)]),)]

    found = run_on_ranks(make, 4)
    assert [one.outputs[0].tolist() for one in found] == [[5.0]] * 4
