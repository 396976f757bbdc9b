"""Each feature with data parallel, beside eager DDP: what comes of both is returned."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

import torchgraph as tg
from tests.distributed.models import (
    OPTIMIZERS,
    Train,
    batch,
    loop,
    loss_of,
    make,
    mlp,
    ran,
    shard,
)

sgd, adamw = OPTIMIZERS["sgd"], OPTIMIZERS["adamw"]


def graph_of(model: nn.Module, optimizer: Any, **options: Any) -> Train:
    step = Train(model, optimizer, **options)
    step.config.enable_data_parallel()
    return step


def accumulation(rank: int) -> dict[str, Any]:
    model = make("mlp")
    step = graph_of(model, adamw(model.parameters()))
    step.config.set_gradient_accumulation_steps(2)
    eager = DDP(make("mlp"))
    optimizer = adamw(eager.parameters())

    def twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        losses = []
        for number, (a, b) in enumerate(zip(x.chunk(2), y.chunk(2), strict=True)):
            with nullcontext() if number else eager.no_sync():
                loss = loss_of(eager, a, b)
                (loss / 2).backward()
                losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses)

    def mean(run: Callable) -> Callable:
        return lambda x, y: run(x, y).mean()

    ours = ran(mean(step), model, "mlp", rank=rank, graph=step)
    return {"ours": ours, "eager": ran(mean(twice), eager, "mlp", rank=rank)}


def _scaled(model: nn.Module, optimizer: Any, scaler: torch.amp.GradScaler) -> Callable:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


def overflow(rank: int) -> dict[str, Any]:
    """Steps 6 and 13 overflow on the last rank alone."""

    def scaler() -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)

    def spoiled(step: Callable) -> Callable:
        count = [0]

        def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            count[0] += 1
            spoil = rank == dist.get_world_size() - 1 and count[0] in (6, 13)
            return step(x * 1e38 if spoil else x, y).nan_to_num()

        return run

    found = {}
    for kind in ("graph", "step", "step of ddp", "eager"):
        model: Any = make("mlp") if kind in ("graph", "step") else DDP(make("mlp"))
        optimizer, own = sgd(model.parameters()), scaler()
        step: Any = _scaled(model, optimizer, own)
        if kind == "graph":
            step = graph_of(model, optimizer)
            step.set_grad_scaler(own)
            step.config.set_clip_grad_norm(0.5)
        elif kind != "eager":
            step = tg.step(step)
            if kind == "step":
                step.config.enable_data_parallel()
        found[kind] = ran(spoiled(step), model, "mlp", rank=rank, graph=step)
        found[kind]["scale"] = own.get_scale()
    return found


def clipping(rank: int) -> dict[str, Any]:
    model = make("mlp")
    step = graph_of(model, sgd(model.parameters()))
    step.config.set_clip_grad_norm(0.1)
    found = {"graph": ran(step, model, "mlp", rank=rank)}
    model = make("mlp")
    step = tg.step(loop(model, sgd(model.parameters()), clip=0.1))
    step.config.enable_data_parallel()
    found["step"] = ran(step, model, "mlp", rank=rank)
    eager = DDP(make("mlp"))
    found["eager"] = ran(loop(eager, sgd(eager.parameters()), clip=0.1), eager, "mlp", rank=rank)
    return found


def unsynced(rank: int) -> dict[str, Any]:
    """Two backward passes a step, of which the second averages the sums."""

    def body(model: nn.Module, off: Callable) -> Callable:
        optimizer = sgd(model.parameters())

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            with off():
                loss_of(model, x[::2], y[::2]).backward()
            loss = loss_of(model, x[1::2], y[1::2])
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    found = {}
    model: Any = make("mlp")
    step = tg.step(body(model, tg.no_sync))
    step.config.enable_data_parallel()
    found["step"] = ran(step, model, "mlp", rank=rank)
    model = DDP(make("conv"))
    found["step of ddp"] = ran(tg.step(body(model, model.no_sync)), model, "conv", rank=rank)
    for name, like in (("mlp", "eager"), ("conv", "eager conv")):
        model = DDP(make(name))
        found[like] = ran(body(model, model.no_sync), model, name, rank=rank)
    return found


def amp(rank: int) -> dict[str, Any]:
    model = make("mlp")
    step = graph_of(model, sgd(model.parameters()))
    step.config.enable_amp(dtype=torch.bfloat16)
    found = {"graph": ran(step, model, "mlp", rank=rank)}
    eager = DDP(make("mlp"))
    optimizer = sgd(eager.parameters())

    def half(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(eager, x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    found["eager"] = ran(half, eager, "mlp", rank=rank)
    return found


class Rerunning(nn.Module):
    """Its middle is computed again in the backward, by an engine inside of the engine."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.body, self.reentrant = mlp(), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body[0](x)
        x = checkpoint(self.body[1:4], x, use_reentrant=self.reentrant)
        return self.body[5](self.body[4](x))


def recomputed(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for reentrant in (False, True):
        for kind in ("graph", "step", "eager"):
            torch.manual_seed(1)
            model: Any = Rerunning(reentrant)
            if kind == "eager":
                model = DDP(model)
            optimizer = sgd(model.parameters())
            step: Any = loop(model, optimizer)
            if kind == "graph":
                step = graph_of(model, optimizer)
                step.config.set_activation_checkpointing("matmuls")
            elif kind == "step":
                step = tg.step(step)
                step.config.enable_data_parallel()
            found[f"{kind} {reentrant}"] = ran(step, model, "mlp", rank=rank)
    return found


def scheduled(rank: int) -> dict[str, Any]:
    """A scheduler, a state that is saved and loaded on the way, and an update that is fused."""

    def rates(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)

    model = make("mlp")
    optimizer = adamw(model.parameters())
    step = graph_of(model, optimizer, lr_sch=rates(optimizer))
    batches = [shard(batch("mlp", n), rank, dist.get_world_size()) for n in range(20)]
    first = [step(*one).item() for one in batches[:10]]
    saved = copy.deepcopy(step.state_dict())
    model = make("mlp")
    with torch.no_grad():
        model[0].weight.add_(rank)  # what the state has to overwrite
    optimizer = adamw(model.parameters())
    other = graph_of(model, optimizer, lr_sch=rates(optimizer))
    other.load_state_dict(saved)
    losses = [*first, *(other(*one).item() for one in batches[10:])]
    found = {"ours": {"losses": losses, "state": dict(model.state_dict())}}
    fused = make("mlp")
    optimizer = adamw(fused.parameters())
    step = graph_of(fused, optimizer, lr_sch=rates(optimizer))
    step.config.allow_fuse_model_update_ops()
    step.config.enable_multi_tensor_update()
    found["fused"] = ran(step, fused, "mlp", rank=rank)
    eager = DDP(make("mlp"))
    optimizer = adamw(eager.parameters())
    scheduler = rates(optimizer)

    def loop_(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = loop(eager, optimizer)(x, y)
        scheduler.step()
        return loss

    found["eager"] = ran(loop_, eager, "mlp", rank=rank)
    return found


def closures(rank: int) -> dict[str, Any]:
    """LBFGS evaluates several times a step, and each evaluation is averaged."""
    model = make("mlp")
    step = graph_of(model, torch.optim.LBFGS(model.parameters(), max_iter=3))
    step.config.set_fallback("eager")
    found = {"graph": ran(step, model, "mlp", rank=rank, steps=6)}
    eager = DDP(make("mlp"))
    optimizer = torch.optim.LBFGS(eager.parameters(), max_iter=3)

    def searched(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(eager, x, y)
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    found["eager"] = ran(searched, eager, "mlp", rank=rank, steps=6)
    return found


def in_eager(rank: int) -> dict[str, Any]:
    """Steps that no program can hold run as eager runs them, and are averaged all the same."""
    found = {}
    for kind in ("graph", "step", "eager"):
        model: Any = make("mlp")
        if kind == "eager":
            model = DDP(model)
        optimizer = sgd(model.parameters())

        def build(
            x: torch.Tensor, y: torch.Tensor, model: Any = model, optimizer: Any = optimizer
        ) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            assert loss.detach().numpy() >= 0
            optimizer.step()
            return loss.detach()

        step: Any = build
        if kind == "step":
            step = tg.step(build)
        elif kind == "graph":
            step = _Looks(model, optimizer)
        if kind != "eager":
            step.config.enable_data_parallel()
            step.config.set_fallback("eager")
        found[kind] = ran(step, model, "mlp", rank=rank)
    return found


class _Looks(Train):
    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = super().build(x, y)
        assert loss.detach().numpy() >= 0
        return loss


def afterwards(rank: int) -> dict[str, Any]:
    """Steps of ours, then eager ones of the same DDP object."""
    found = {}
    for option in ("", "find_unused_parameters", "gradient_as_bucket_view", "static_graph"):
        for kind in ("ours", "eager"):
            name = "unused" if option == "find_unused_parameters" else "conv"
            model = DDP(make(name), **({option: True} if option else {}))
            body = loop(model, sgd(model.parameters()))
            step: Any = body
            if kind == "ours":
                step = tg.step(body)
            first = ran(step, model, name, rank=rank, steps=6)
            then = ran(body, model, name, rank=rank, steps=6)
            found[f"{kind} {option}"] = {
                "losses": first["losses"] + then["losses"],
                "state": then["state"],
                "grads": first["grads"] + then["grads"],
            }
    return found


def on_a_mesh(rank: int) -> dict[str, Any]:
    """Two pairs of ranks, each of which trains a model of its own."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("other", "dp"))
    model, half = make("mlp"), rank // 2
    step = Train(model, sgd(model.parameters()))
    step.config.enable_data_parallel(mesh["dp"])
    eager = DDP(make("mlp"), process_group=mesh["dp"].get_group())
    found = {}
    for kind, run, of in (
        ("ours", step, model),
        ("eager", loop(eager, sgd(eager.parameters())), eager),
    ):
        losses = [run(*shard(batch("mlp", 50 * half + n), rank % 2, 2)).item() for n in range(10)]
        state = {k.removeprefix("module."): v for k, v in of.state_dict().items()}
        found[kind] = {"losses": losses, "state": state}
    return found


def made_equal(rank: int) -> dict[str, Any]:
    """Parameters and buffers that differ are those of the first rank from the first call on."""
    torch.manual_seed(rank)
    model = make("conv")
    with torch.no_grad():
        model[1].running_mean.add_(rank)
        model[0].weight.mul_(1 + rank)
    step = graph_of(model, torch.optim.SGD(model.parameters(), 0.0))
    x, y = shard(batch("conv", 0), rank, dist.get_world_size())
    step(x, y)
    return {"state": dict(model.state_dict()), "first": make("conv").state_dict()}


FEATURES: dict[str, Callable[[int], dict[str, Any]]] = {
    one.__name__: one
    for one in (
        *(accumulation, overflow, clipping, unsynced, amp, recomputed, scheduled, closures),
        *(in_eager, afterwards, made_equal),
    )
}
