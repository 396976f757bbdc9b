"""Modules with DTensor parameters: recorded as what lies in this process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F

import torchgraph as tg
from tests.distributed import spawn
from tests.support import thinned

pytestmark = pytest.mark.dist
STEPS = 8
PLAN = {"up": ColwiseParallel, "down": RowwiseParallel}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x + self.down(F.gelu(self.up(self.norm(x)))))


def block() -> Block:
    torch.manual_seed(0)
    return Block()


def planned(mesh: Any) -> nn.Module:
    return parallelize_module(block(), mesh, {name: kind() for name, kind in PLAN.items()})


def cut(mesh: Any) -> nn.Module:
    """Every parameter is a DTensor, cut along its first dimension."""

    def shard(_: str, module: nn.Module, mesh: Any) -> None:
        for name, p in list(module.named_parameters(recurse=False)):
            made = nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(0)]))
            module.register_parameter(name, made)

    return distribute_module(block(), mesh, shard)


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(number)
    return torch.randn(8, 16), torch.randint(5, (8,))


def whole(model: nn.Module) -> list[torch.Tensor]:
    held = (p.detach() for p in model.parameters())
    return [p.full_tensor() if isinstance(p, DTensor) else p.clone() for p in held]


def trained(
    model: nn.Module, way: str, name: str, *, given: Any = lambda x: x, clip: float = 0.0
) -> dict[str, Any]:
    """``given`` makes DTensors of arguments."""
    forms: dict[str, dict[str, Any]] = {"fused": {"fused": True}, "foreach": {"foreach": True}}
    makers = {"sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), "lamb": tg.optim.LAMB}

    def adam(p):
        return torch.optim.AdamW(p, 1e-2, amsgrad=name == "amsgrad", **forms.get(name, {}))

    optimizer = makers.get(name, adam)(model.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch))

    def step(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        scheduler.step()
        return loss, out

    run = tg.step(step) if way == "step" else step
    losses, layouts = [], set()
    for number in range(STEPS):
        loss, out = run(*map(given, batch(number)))
        losses.append((loss.full_tensor() if isinstance(loss, DTensor) else loss).item())
        layouts.add(str(out.placements) if isinstance(out, DTensor) else "plain")
    calls = run.report().calls.programs if way == "step" else STEPS
    return {"losses": losses, "parameters": whole(model), "layouts": layouts, "programs": calls}


def replicated(mesh: Any) -> Any:
    return lambda x: DTensor.from_local(x, mesh, [Replicate()])


def sharded(mesh: Any) -> Any:
    return lambda x: distribute_tensor(x, mesh, [Shard(0)])


def cases(rank: int) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (2,))
    found: dict[str, Any] = {}
    for way in ("eager", "step"):
        for name in ("sgd", "adam", "amsgrad"):
            found[f"planned {name} {way}"] = trained(planned(mesh), way, name)
        for name in ("adam", "fused", "foreach", "lamb"):
            given = replicated(mesh)
            found[f"cut {name} {way}"] = trained(cut(mesh), way, name, given=given)
        found[f"clipped {way}"] = trained(cut(mesh), way, "adam", given=replicated(mesh), clip=0.05)
        found[f"sharded batch {way}"] = trained(cut(mesh), way, "adam", given=sharded(mesh))
    return found


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return spawn.run(cases, 2)


NAMES = (
    *(f"planned {name}" for name in ("sgd", "adam", "amsgrad")),
    *(f"cut {name}" for name in ("adam", "fused", "foreach", "lamb")),
    "clipped",
    "sharded batch",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_has_the_bits_of_eager(ranks, name):
    for rank in ranks:
        ours, eager = rank[f"{name} step"], rank[f"{name} eager"]
        assert ours["losses"] == eager["losses"]
        assert all(map(torch.equal, ours["parameters"], eager["parameters"]))
        assert ours["layouts"] == eager["layouts"]
        assert ours["programs"] >= STEPS - 4


def on_a_mesh_of_two_dimensions(rank: int, stage: int, clip: float) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = planned(mesh["tp"])
    optimizer = adamw(model, clip)
    graph = Train(model, optimizer)
    graph.config.enable_data_parallel(mesh["dp"])
    graph.config.enable_zero(stage > 0, stage=max(stage, 1), shard_min_size=1)
    row, losses = mesh["dp"].get_local_rank(), []
    for number in range(STEPS):
        loss = graph(*(part.chunk(2)[row] for part in batch(number))).clone()
        dist.all_reduce(loss, group=mesh["dp"].get_group())
        losses.append(loss.item() / 2)
    assert graph.report().calls.programs >= STEPS - 4
    parameters = whole(model)
    x, y = batch(STEPS)
    F.cross_entropy(model(x), y).backward()  # in eager, beside the Graph
    gradients = [
        p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for p in model.parameters()
    ]
    slots = [slot for state in optimizer.state.values() for slot in state.values()]
    layouts = {name: p.placements for name, p in model.named_parameters() if isinstance(p, DTensor)}
    return {
        "losses": losses,
        "parameters": parameters,
        "gradients": gradients,
        "layouts": layouts,
        "numbers": sum(slot.to_local().numel() for slot in slots if isinstance(slot, DTensor)),
    }


def adamw(model: nn.Module, clip: float = 0.0) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    if clip:
        optimizer.param_groups[0].update(clip_grad_max_norm=clip, clip_grad_norm_type=2.0)
    return optimizer


class Train(tg.Graph):
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


BESIDE = [(0, 0.0), (1, 0.05), (2, 0.0), (3, 0.05)]


@pytest.mark.parametrize("how", thinned(BESIDE, keep=[(3, 0.05)]))
def test_beside_data_parallel_it_is_one_process_on_the_whole_batch(how):
    stage, clip = how
    model = block()
    alone = Train(model, adamw(model, clip))
    expected = [alone(*batch(number)).item() for number in range(STEPS)]
    parameters = whole(model)
    x, y = batch(STEPS)
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    for found in spawn.run(on_a_mesh_of_two_dimensions, 4, stage, clip):
        assert found["losses"] == pytest.approx(expected, abs=1e-6)
        torch.testing.assert_close(found["parameters"], parameters, rtol=0, atol=1e-6)
        if not stage:
            continue
        gradients = [p.grad for p in model.parameters()]
        torch.testing.assert_close(found["gradients"], gradients, rtol=0, atol=1e-6)
        assert found["layouts"]["up.weight"] == (Shard(1), Shard(0))  # data, tensor parallel
        assert found["layouts"]["down.weight"] == (Shard(0), Shard(1))
        assert found["layouts"]["head.weight"] == (Shard(0), Replicate())
        assert found["numbers"] < 2 * sum(p.numel() for p in model.parameters()) / 3
