"""Data parallel, ZeRO, tensor parallel and stages, on a GPU for each rank: beside eager's numbers.

The same runs on the CPU, so that machines without GPUs keep the test itself right.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP

import torchgraph as tg
from tests.distributed import spawn
from tests.distributed.test_zero_users import loop
from torchgraph.nn.graph import GraphModule

pytestmark = pytest.mark.dist
STEPS = 8
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.cuda,
            pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
        ],
    ),
]


def layers(device: str) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).to(device)


def batch(device: str, rank: int, number: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(10 * number + rank)
    return torch.randn(8, 16, generator=made).to(device)


def whole(model: nn.Module) -> list[torch.Tensor]:
    held = (p.detach() for p in model.parameters())
    return [(p.full_tensor() if isinstance(p, DTensor) else p).cpu() for p in held]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 1e-2)


class Train(tg.Graph):
    def __init__(self, model: nn.Module, *, stage: int = 0, staged: bool = False) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(adamw(model))
        if staged:
            self.config.set_gradient_accumulation_steps(2)
            for number, place in ((0, 0), (1, 0), (2, 1)):
                self.model[number].to(GraphModule).set_stage(place, place)
        else:
            self.config.enable_data_parallel()
            self.config.enable_zero(stage > 0, stage=max(stage, 1), shard_min_size=1)

    def build(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


def planned(device: str) -> nn.Module:
    mesh, model = init_device_mesh(device, (2,)), layers(device)
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def sharded(device: str) -> nn.Module:
    mesh, model = init_device_mesh(device, (2,)), layers(device)
    return fully_shard(model, mesh=mesh)


def accumulated(device: str) -> tuple[list[float], list[torch.Tensor]]:
    """One process with the micro-batches of two stages."""
    model = layers(device)
    optimizer, losses = adamw(model), []
    for number in range(STEPS):
        optimizer.zero_grad()
        parts = [model(x).square().mean() for x in batch(device, 0, number).chunk(2)]
        for part in parts:
            (part / 2).backward()
        optimizer.step()
        losses.append(sum(part.item() for part in parts) / 2)
    return losses, whole(model)


def every(rank: int, device: str) -> dict[str, Any]:
    """By case: the losses and parameters of ours, and of eager."""

    def ran(run: Any, model: nn.Module, of: int = rank) -> tuple[list[float], list[torch.Tensor]]:
        losses = [run(batch(device, of, number)) for number in range(STEPS)]
        return [float(loss.mean()) for loss in losses if not loss.is_meta], whole(model)

    model = layers(device)
    expected = ran(loop(DDP(model), adamw(model)), model)
    found: dict[str, Any] = {}
    for stage in (0, 1, 2, 3):
        model = layers(device)
        found[f"stage {stage}"] = ran(Train(model, stage=stage), model), expected
    for name, make in (("tensor parallel", planned), ("fully_shard", sharded)):
        ours, theirs = make(device), make(device)
        of = 0 if make is planned else rank
        found[name] = (
            ran(tg.step(loop(ours, adamw(ours))), ours, of),
            ran(loop(theirs, adamw(theirs)), theirs, of),
        )
    model = layers(device)
    graph = Train(model, staged=True)
    losses = [graph(batch(device, 0, number)) for number in range(STEPS)]
    graph.sync()
    own = [float(loss.mean()) for loss in losses if not loss.is_meta]
    expected = accumulated(device)
    found["stages"] = (own, whole(model)), expected
    return found


@pytest.mark.parametrize("device", DEVICES)
def test_the_numbers_are_those_of_eager(device):
    backend = "nccl" if device == "cuda" else "gloo"
    for rank in spawn.run(every, 2, device, backend=backend):
        for name, ((losses, parameters), (expected, others)) in rank.items():
            assert losses == pytest.approx(expected[: len(losses)], abs=1e-5), name
            torch.testing.assert_close(parameters, others, rtol=0, atol=1e-5, msg=name)
