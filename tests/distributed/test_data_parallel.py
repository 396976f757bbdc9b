"""Data parallel: the numbers of eager DDP, and of one process on the whole batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.distributed import models
from tests.distributed.models import OURS, alone, by_ddp, by_graph
from tests.distributed.spawn import run
from tests.support import thinned

NAMES = ("mlp", "dropout", "conv", "gpt", "unused")
WITH_ADAMW = ("mlp", "gpt")
CASES = [(name, "sgd") for name in NAMES] + [(name, "adamw") for name in WITH_ADAMW]
SMALL = {"bucket_mb": 0.0005}
STEPS = 20


def _work(rank: int) -> dict[Any, Any]:
    """All cases, on one rank."""
    found: dict[Any, Any] = {}
    for case in CASES:
        unused = {"find_unused_parameters": True} if case[0] == "unused" else {}
        found["DDP", case] = by_ddp(rank, *case, **unused)
        for kind, train in OURS.items():
            found[kind, case] = train(rank, *case, **(unused if "ddp" in kind else {}))
    for kind in ("graph", "step"):
        found[kind, ("synced", "sgd")] = OURS[kind](rank, "synced", "sgd")
    found["small"] = by_graph(rank, "mlp", "sgd", **SMALL)
    found["nodes"] = _nodes(rank)
    return found


def _nodes(rank: int) -> list[tuple[str, tuple[int, ...], int]]:
    """(op, shape, bytes) of the nodes of a program with several buckets, in order."""
    model = models.make("mlp")
    step = models.Train(model, models.OPTIMIZERS["sgd"](model.parameters()))
    step.config.enable_data_parallel(**SMALL)
    for number in range(3):
        step(*models.shard(models.batch("mlp", number), rank, dist.get_world_size()))
    values = [(n, n.meta.get("val")) for n in step.program.nodes if n.op == "call_function"]
    return [
        (str(n.target), tuple(v.shape), v.nbytes if isinstance(v, torch.Tensor) else 0)
        for n, v in values
        if isinstance(v, torch.Tensor)
    ]


@pytest.fixture(scope="module", params=thinned([2, 4], keep=[2]))
def ranks(request) -> list[dict[Any, Any]]:
    return run(_work, request.param)


@pytest.mark.parametrize("case", CASES, ids="-".join)
@pytest.mark.parametrize("kind", OURS)
def test_the_numbers_are_those_of_ddp(ranks, kind, case):
    """To the last bit between two ranks; more add up in the order of the ring."""
    for rank in ranks:
        ours, theirs = rank[kind, case], rank["DDP", case]
        if len(ranks) == 2:
            assert ours["losses"] == theirs["losses"]
        apart = [abs(a - b) for a, b in zip(ours["losses"], theirs["losses"], strict=True)]
        sizes = [max(1.0, abs(loss)) for loss in theirs["losses"]]
        assert all(gap <= 1e-6 * size for gap, size in zip(apart, sizes, strict=True))
        for name, value in theirs["state"].items():
            close = {"rtol": 0, "atol": 0 if len(ranks) == 2 else 1e-6}
            torch.testing.assert_close(ours["state"][name], value, **close)
        if "step" in kind:
            assert ours["grads"] == theirs["grads"]


@pytest.mark.parametrize("case", CASES, ids="-".join)
@pytest.mark.parametrize("kind", OURS)
def test_programs_run_it(ranks, kind, case):
    for rank in ranks:
        assert rank[kind, case]["why"] == ""
        assert rank[kind, case]["runs"] >= STEPS - 3


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        *((kind, (name, how)) for kind in OURS for name, how in CASES if name in WITH_ADAMW),
        *((kind, ("synced", "sgd")) for kind in ("graph", "step")),
    ],
)
def test_the_numbers_are_those_of_one_process(ranks, kind, case):
    """Which has the whole batch; a SyncBatchNorm knows it too."""
    name, how = case
    whole = alone("conv" if name == "synced" else name, how)
    losses = zip(*(rank[kind, case]["losses"] for rank in ranks), strict=True)
    for mean, loss in zip(
        (sum(each) / len(ranks) for each in losses), whole["losses"], strict=True
    ):
        assert mean == pytest.approx(loss, rel=1e-6, abs=1e-6)
    for rank in ranks:
        for key, value in whole["state"].items():
            torch.testing.assert_close(rank[kind, case]["state"][key], value, rtol=0, atol=1e-6)


def test_ranks_end_with_the_same_parameters(ranks):
    for key in ranks[0]:
        if isinstance(key, tuple):
            states = [rank[key]["state"] for rank in ranks]
            for name in [n for n in states[0] if "running" not in n]:
                assert all(torch.equal(states[0][name], other[name]) for other in states[1:])


def test_what_a_step_sends(ranks):
    """One bucket, and with small ones each layer's weight and bias, a little more than once."""
    for kind in OURS:
        ops = ranks[0][kind, ("mlp", "sgd")]["ops"]
        assert sum("all_reduce" in op for op in ops) == 1
        assert sum("wait_tensor" in op for op in ops) == 1
        norms = ranks[0][kind, ("conv", "sgd")]["ops"]
        assert sum("broadcast" in op for op in norms) == 2  # float and int buffers
    sent = [nbytes for op, _, nbytes in ranks[0]["nodes"] if "all_reduce" in op]
    parameters = list(models.make("mlp").parameters())
    assert sum(sent) == sum(parameter.nbytes for parameter in parameters)
    assert len(sent) == 3


def test_buckets_change_no_number(ranks):
    for rank in ranks:
        one, other = rank["small"], rank["graph", ("mlp", "sgd")]
        for name, value in one["state"].items():
            close = {"rtol": 0, "atol": 0 if len(ranks) == 2 else 1e-6}
            torch.testing.assert_close(value, other["state"][name], **close)


def test_communication_runs_beside_the_backward(ranks):
    """Each bucket begins once its last gradient is there; all are waited for after the last one."""
    ops = [op for op, _, _ in ranks[0]["nodes"]]
    begun = [i for i, op in enumerate(ops) if "all_reduce" in op]
    waits = [i for i, op in enumerate(ops) if "wait_tensor" in op]
    products = [i for i, op in enumerate(ops) if op.startswith("aten.mm")]
    assert sum(begun[0] < product for product in products) == 3
    assert sum(begun[1] < product for product in products) == 1
    assert max(products) < begun[2] < min(waits)
    assert [rank["nodes"] for rank in ranks[1:]] == [ranks[0]["nodes"]] * (len(ranks) - 1)
