"""Milliseconds per step of two processes that train together: DDP, FSDP2 and torchgraph.

    python -m benchmarks.data_parallel

Gloo on this machine, each process on one thread. In each round every contender takes the same
number of steps, between two barriers; who begins changes from round to round.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.table import Table
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import torchgraph as tg

from . import command, record
from .cases import CASES, dense, mlp
from .contenders import TrainGraph
from .timing import Spread
from .work import Case, Work

LR = 1e-3
WARM_UP = 12
Step = Callable[[], Any]
OWN = {
    case.name: case
    for case in (
        Case("mlp", "8 layers of 128", lambda: dense(mlp(8), batch=32, inputs=64)),
        Case("wide", "8 layers of 512", lambda: dense(mlp(8, width=512), batch=32, inputs=64)),
        *(CASES[name] for name in ("gpt", "conv6")),
    )
}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the table, write the JSON and return what it holds."""
    args = _arguments(argv)
    with tempfile.TemporaryDirectory() as folder, command.threads(1):
        results = {name: _measured(name, args, f"{folder}/{name}") for name in args.models}
        head = record.result(
            "data_parallel",
            torch.device("cpu"),
            rounds=args.rounds,
            steps=args.steps,
            ranks=args.ranks,
            quick=args.quick,
            optimizer="AdamW",
        )
    result = {**head, "models": results}
    command.save(command.shown(result, _table(result)), result, args.out, "data_parallel")
    return result


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.CommandLine(__doc__)
    parser.rounds(15)
    parser.add_argument("--steps", type=int, default=20, help="of each contender in a round")
    parser.add_argument("--ranks", type=int, default=2)
    parser.some("models", OWN, OWN)
    parser.some("contenders", CONTENDERS, CONTENDERS)
    args = parser.read(argv)
    if args.quick:
        args.rounds, args.steps = min(args.rounds, 2), min(args.steps, 2)
    return args


def _measured(name: str, args: argparse.Namespace, store: str) -> list[dict[str, Any]]:
    """Each contender's seconds a step, on the slower of the ranks."""
    context = mp.get_context("spawn")
    found = context.Manager().dict()
    given = (store, name, args.contenders, args.rounds, args.steps, args.ranks, found)
    ranks = [context.Process(target=_rank, args=(rank, *given)) for rank in range(args.ranks)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    if any(process.exitcode for process in ranks):
        raise SystemExit(f"{name}: a rank has failed.")
    spreads = [
        Spread(
            tuple(max(each) for each in zip(*(found[r][i] for r in range(args.ranks)), strict=True))
        )
        for i in range(len(args.contenders))
    ]
    medians = {one: s.median for one, s in zip(args.contenders, spreads, strict=True)}
    return [
        {
            "name": one,
            "seconds": s.as_json(),
            "time_against": {
                base: s.median / medians[base] for base in ("DDP", "FSDP2") if base in medians
            },
        }
        for one, s in zip(args.contenders, spreads, strict=True)
    ]


def _rank(
    rank: int,
    store: str,
    name: str,
    contenders: Sequence[str],
    rounds: int,
    steps: int,
    ranks: int,
    found: Any,
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    made = [CONTENDERS[one](OWN[name].on(torch.device("cpu"))) for one in contenders]
    for step in made:
        for _ in range(WARM_UP):
            step()
    times: list[list[float]] = [[] for _ in made]
    for number in range(rounds):
        for offset in range(len(made)):
            index = (number + offset) % len(made)
            dist.barrier()
            start = time.perf_counter()
            for _ in range(steps):
                made[index]()
            times[index].append((time.perf_counter() - start) / steps)
    found[rank] = times
    dist.barrier()
    dist.destroy_process_group()


# --- who trains ----------------------------------------------------------------------------------


def _loop(work: Work, model: Any) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    optimizer, loss_fn = torch.optim.AdamW(model.parameters(), lr=LR), work.loss_fn

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _ddp(work: Work) -> Step:
    step = _loop(work, DistributedDataParallel(work.model))
    return lambda: step(work.x, work.y)


def _compiled_ddp(work: Work) -> Step:
    step = _loop(work, torch.compile(DistributedDataParallel(work.model)))
    return lambda: step(work.x, work.y)


def _graph(work: Work, backend: str, *, stage: int = 0, agreement: str = "program") -> Step:
    graph = TrainGraph(work, torch.optim.AdamW(work.model.parameters(), lr=LR), backend)
    graph.config.enable_data_parallel(bucket_mb=1.0 if stage else 25.0)
    graph.config.enable_zero(stage > 0, stage=max(stage, 1))
    graph.config.set_agreement(agreement)
    return lambda: graph(work.x, work.y)


def _sharded(model: Any) -> Any:
    """Each layer, then the rest, as FSDP2 is meant to be used."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in _layers(model):
        fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _layers(model: nn.Module) -> list[nn.Module]:
    found = [one for one in model.modules() if isinstance(one, nn.ModuleList | nn.Sequential)]
    longest = list(max(found, key=lambda one: len(one), default=nn.ModuleList()))
    return [one for one in longest if any(True for _ in one.parameters())]


def _fsdp(work: Work) -> Step:
    step = _loop(work, _sharded(work.model))
    return lambda: step(work.x, work.y)


def _step_of_fsdp(work: Work) -> Step:
    step = tg.step(_loop(work, _sharded(work.model)))
    step.config.set_backend("aten")
    return lambda: step(work.x, work.y)


def _step_of_ddp(work: Work) -> Step:
    step = tg.step(_loop(work, DistributedDataParallel(work.model)))
    step.config.set_backend("aten")
    return lambda: step(work.x, work.y)


CONTENDERS: dict[str, Callable[[Work], Step]] = {
    "DDP": _ddp,
    "torch.compile(DDP)": _compiled_ddp,
    "torchgraph aten": lambda work: _graph(work, "aten"),
    "torchgraph inductor": lambda work: _graph(work, "inductor"),
    "torchgraph aten over DDP": _step_of_ddp,
    "torchgraph aten, nothing agreed": lambda work: _graph(work, "aten", agreement="off"),
    "FSDP2": _fsdp,
    "torchgraph aten over FSDP2": _step_of_fsdp,
    "torchgraph aten, ZeRO 2": lambda work: _graph(work, "aten", stage=2),
    "torchgraph aten, ZeRO 3": lambda work: _graph(work, "aten", stage=3),
}


def _table(result: dict[str, Any]) -> Table:
    table = Table("model", "contender", "ms a step", "quartiles", "of DDP's", "of FSDP2's")
    for model, rows in result["models"].items():
        for row in rows:
            low, high = row["seconds"]["quartiles"]
            table.add_row(
                model,
                row["name"],
                f"{row['seconds']['median'] * 1e3:.2f}",
                f"{low * 1e3:.2f} to {high * 1e3:.2f}",
                *(f"{ratio:.2f}x" for ratio in row["time_against"].values()),
            )
            model = ""
    return table


if __name__ == "__main__":
    main()
