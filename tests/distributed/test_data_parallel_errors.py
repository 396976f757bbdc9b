"""What data parallel refuses, before a number is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import torchgraph as tg
from tests.distributed.models import OPTIMIZERS, Train, batch, loop, loss_of, make, shard
from tests.distributed.spawn import run
from torchgraph.distributed import agreement
from torchgraph.distributed.errors import NoProcessGroup
from torchgraph.errors import InvalidOption

sgd = OPTIMIZERS["sgd"]


def test_without_a_process_group():
    with pytest.raises(NoProcessGroup, match="init_process_group"):
        tg.GraphConfig().enable_data_parallel()


@pytest.mark.parametrize("mesh", ["dp", 2, nn.Linear(1, 1)])
def test_a_mesh_that_is_none(mesh):
    with pytest.raises(InvalidOption, match="takes a DeviceMesh or None"):
        tg.GraphConfig().enable_data_parallel(mesh)


@pytest.mark.parametrize(
    "wrong", [{"bucket_mb": -1}, {"bucket_mb": "25"}, {"broadcast_buffers": 1}]
)
def test_values_that_are_wrong(wrong):
    with pytest.raises(InvalidOption):
        tg.GraphConfig().enable_data_parallel(**wrong)


def test_switched_off():
    config = tg.GraphConfig()
    config.enable_data_parallel(False)
    assert config.options.data_parallel is None


def _said(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:  # which one it is, the test asks
        return f"{type(error).__name__}: {error}"
    return "nothing"


def _wide_mesh(rank: int) -> object:
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
    return tg.GraphConfig().enable_data_parallel(mesh)


def _graph(model: nn.Module) -> Train:
    step = Train(model, sgd(model.parameters()))
    step.config.enable_data_parallel()
    return step


def _batch(rank: int) -> Any:
    return shard(batch("mlp", 0), rank, dist.get_world_size())


def _other_models(rank: int) -> object:
    layers = [nn.Linear(8, 8 + rank), nn.Linear(8 + rank, 4)]
    return _graph(nn.Sequential(*layers))(*_batch(rank))


def _around_the_call(rank: int) -> object:
    step = _graph(make("mlp"))
    with tg.no_sync():
        return step(*_batch(rank))


class _Unsynced(Train):
    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with tg.no_sync():
            return super().build(x, y)


def _in_build(rank: int) -> object:
    model = make("mlp")
    step = _Unsynced(model, sgd(model.parameters()))
    step.config.enable_data_parallel()
    return step(*_batch(rank))


def _padded(rank: int) -> object:
    step = _graph(make("mlp"))
    step.config.set_shape_buckets(0, [16])
    return step(*_batch(rank))


def _hooked(rank: int) -> object:
    model = DDP(make("mlp"))

    def hook(state, bucket):
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future()

    model.register_comm_hook(None, hook)
    return tg.step(loop(model, sgd(model.parameters())))(*_batch(rank))


def _hidden(rank: int) -> object:
    many: list[Any] = [None] * 100  # a search takes it for data
    many.append(make("mlp"))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        model = many[-1]
        loss = loss_of(model, x, y)
        loss.backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
        return loss

    found = tg.step(step)
    found.config.enable_data_parallel()
    return found(*_batch(rank))


def _steps_in_backward(rank: int) -> object:
    model = make("mlp")
    optimizers = {p: torch.optim.SGD([p], 0.1) for p in model.parameters()}
    for p in optimizers:
        p.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = loss_of(model, x, y)
        loss.backward()
        return loss

    found = tg.step(step)
    found.config.enable_data_parallel()
    return found(*_batch(rank))


def _sparse(rank: int) -> object:
    model = nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Flatten(0, 1))
    step = Train(model, torch.optim.SGD(model.parameters(), 0.1))
    step.config.enable_data_parallel()
    step.config.set_fallback("eager")
    return step(torch.arange(4).view(2, 2), torch.zeros(4, dtype=torch.long))


def _lazy(rank: int) -> object:
    model = nn.Sequential(nn.LazyLinear(4))
    return _graph(model)(*_batch(rank))


REFUSED: dict[str, tuple[Callable[[int], object], str]] = {
    "a mesh of two dimensions": (_wide_mesh, r"InvalidOption: .*one dimension.*mesh\[.dp.\]"),
    "other models": (_other_models, r"RanksDiffer: Rank 0 has .*\[8, 8\].* rank 1: .*\[9, 8\]"),
    "no_sync around the call": (_around_the_call, r"OutsideOfStep: .*into the function"),
    "no_sync in a build": (_in_build, r"OutsideOfStep: .*set_gradient_accumulation_steps"),
    "padded batches": (_padded, r"NotSupported: set_shape_buckets"),
    "a communication hook": (_hooked, r"NotSupported: .*register_comm_hook"),
    "a model that no name leads to": (_hidden, r"NotAveraged: SGD updates a parameter"),
    "an optimizer in backward": (_steps_in_backward, r"NotAveraged: SGD steps inside of a back"),
    "sparse gradients": (_sparse, r"NotSupported: .*sparse"),
    "lazy modules": (_lazy, r"NotSupported: .*lazy"),
}


def _work(rank: int) -> dict[str, str]:
    found = {name: _said(partial(call, rank)) for name, (call, _) in REFUSED.items()}
    dist.barrier()  # a rank that has ended is lost to one that is still at it
    return found


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, str]]:
    return run(_work, 2)


@pytest.mark.parametrize("what", REFUSED)
def test_refused_on_every_rank(ranks, what):
    for rank in ranks:
        assert re.search(REFUSED[what][1], rank[what], re.DOTALL), rank[what]


def _alone(rank: int) -> str:
    dist.barrier()  # both are connected
    with mock.patch.object(agreement, "_SECONDS", 1.0):
        if rank:
            return ""
        return _said(lambda: agreement.Agreement("0").exchange(1, "what it does"))


def test_a_rank_that_does_not_come():
    said = run(_alone, 2)[0]
    assert re.match(r"Rank(Absent|Lost): Rank 1 .*(where ranks say what it does|left)", said), said
