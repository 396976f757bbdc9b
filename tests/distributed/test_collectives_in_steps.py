"""Collectives that a step calls itself: recorded by their functional form, refused, or lowered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as funcol

import torchgraph as tg
from tests.distributed import models
from tests.distributed.spawn import run
from torchgraph._torch.distributed import collectives
from torchgraph.ir.aliasing import storages_of, waits_for
from torchgraph.ir.writes import written_by

WAYS: dict[str, Callable[[torch.Tensor], object]] = {}


def way(function: Callable[[torch.Tensor], object]) -> Callable[[torch.Tensor], object]:
    WAYS[function.__name__] = function
    return function


@way
def all_reduce(g: torch.Tensor) -> None:
    dist.all_reduce(g)
    g.div_(2)


@way
def largest(g: torch.Tensor) -> None:
    dist.all_reduce(g, op=dist.ReduceOp.MAX)


@way
def later(g: torch.Tensor) -> None:
    work = dist.all_reduce(g, async_op=True)
    work.wait()


@way
def broadcast(g: torch.Tensor) -> None:
    dist.broadcast(g, 1)


@way
def gather_into(g: torch.Tensor) -> None:
    out = torch.empty(8)
    dist.all_gather_into_tensor(out, g)
    g.copy_(out.view(2, 4).sum(0))


@way
def gather(g: torch.Tensor) -> None:
    out = [torch.empty(4) for _ in range(2)]
    dist.all_gather(out, g)
    g.copy_(out[0] - out[1])


@way
def gather_numbers(g: torch.Tensor) -> None:
    out = [torch.empty(()) for _ in range(2)]
    dist.all_gather(out, g.sum())
    g.mul_(torch.stack(out).mean())


@way
def reduce_scatter(g: torch.Tensor) -> None:
    out = torch.empty(2)
    dist.reduce_scatter_tensor(out, g)
    g[:2].copy_(out)


@way
def scalar(g: torch.Tensor) -> None:
    total = g.sum()
    dist.all_reduce(total)
    g.mul_(total)


@way
def parts(g: torch.Tensor) -> None:
    """A view of what is not waited for is waited for itself."""
    first, second = funcol.all_reduce(g / 2, "sum", dist.group.WORLD).split(2)
    g[:2].copy_(second)
    g[2:].copy_(first)


REFUSED: dict[str, Callable[[torch.Tensor], object]] = {
    "barrier": lambda g: dist.barrier(),
    "reduce": lambda g: dist.reduce(g, 0),
    "alltoall_base": lambda g: dist.all_to_all_single(torch.zeros(4), g),
}


def _trained(step_of: Callable, change: Callable, rank: int) -> tuple[list, torch.Tensor, Any]:
    weight = nn.Parameter(torch.linspace(-1, 1, 4))
    optimizer = torch.optim.SGD([weight], 0.1, momentum=0.5)

    def body(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = ((weight * x) ** 2).sum()
        loss.backward()
        change(weight.grad)
        optimizer.step()
        return loss.detach()

    step = step_of(body)
    generator = torch.Generator().manual_seed(rank)
    losses = [step(torch.randn(4, generator=generator)).item() for _ in range(6)]
    return losses, weight.detach().clone(), step


def _said(change: Callable, rank: int) -> str:
    try:
        _trained(tg.step, change, rank)
    except Exception as error:  # which one it is, the test asks
        return f"{type(error).__name__}: {error}"
    return "nothing"


def _in_flight(rank: int, options: tuple[str, ...]) -> dict[str, Any]:
    """Waits are delayed; until then nothing writes what a gather reads: no op, arena or region."""
    found: dict[str, Any] = {}
    for option in options:
        weight = nn.Parameter(torch.arange(4.0))

        def body(x: torch.Tensor, weight: nn.Parameter = weight) -> torch.Tensor:
            sent = x * 2
            both = collectives.gathered(sent, 2, "0")
            mine = collectives.gathered(weight.detach(), 2, "0")
            other = (sent + 1).sin() * sent
            with torch.no_grad():
                weight.add_(other)
            total = collectives.wait(collectives.begin_sum(weight.detach() * other, "0"))
            return (both + mine + total.repeat(2)).sum()

        step = tg.step(body)
        if option == "arena":
            step.config.enable_compress_memory()
        elif option:
            step.config.set_backend(option)
        plain = nn.Parameter(torch.arange(4.0))
        inputs = [torch.full((4,), 1.0 + rank + n) for n in range(5)]
        ours = [step(x).item() for x in inputs]
        eager = [body(x, plain).item() for x in inputs]
        replay = next(iter(step._runner.cache))
        found[option] = {
            "equal": (ours == eager, torch.equal(weight, plain)),
            "runs": step._runner.cache.hits,
            "close": torch.allclose(torch.tensor(ours), torch.tensor(eager)),
            "early": _written_early(replay.executable.program),
            "beside": _beside(step.program),
        }
    return found


def _written_early(program: Any) -> list[str]:
    """Nodes between a gather and its wait that write what it reads."""
    nodes, found = list(program.nodes), []
    for begun, wait in waits_for(nodes).items():
        read = {s for source in begun.all_input_nodes for s in storages_of(source)}
        for node in nodes[nodes.index(begun) + 1 : nodes.index(wait)]:
            states = getattr(node.target, "states", ())  # of a region
            names = {node.name for node in begun.all_input_nodes}
            if names & set(states):
                found.append(node.name)
            if any(read & set(storages_of(written)) for written in written_by(node)):
                found.append(node.name)
    return found


def _beside(program: Any) -> int:
    """Products, sines and sums that run while a gather is under way."""
    nodes = list(program.nodes)
    (begun, wait), *_ = waits_for(nodes).items()
    between = nodes[nodes.index(begun) + 1 : nodes.index(wait)]
    return sum(
        str(node.target).startswith(("aten.add", "aten.mul", "aten.sin")) for node in between
    )


def _other_shapes(rank: int, backend: str) -> dict[str, Any]:
    """Batches whose sizes differ from rank to rank: one records while the other replays."""
    found = {}
    for kind in ("graph", "step", "eager"):
        model: Any = models.make("mlp")
        model = nn.parallel.DistributedDataParallel(model) if kind == "eager" else model
        optimizer = models.OPTIMIZERS["sgd"](model.parameters())
        step: Any = models.loop(model, optimizer)
        if kind != "eager":
            step = tg.step(step) if kind == "step" else models.Train(model, optimizer)
            step.config.enable_data_parallel()
            step.config.set_backend(backend)
        generator = torch.Generator().manual_seed(rank)
        losses = []
        for number in range(48):
            size = int(torch.randint(2, 5, (), generator=generator))
            x, y = models.batch("mlp", number, size=size)
            losses.append(step(x + rank, y).item())
        runs = 0 if kind == "eager" else step._runner.cache.hits
        found[kind] = (losses, [p.detach().clone() for p in model.parameters()], runs)
    return found


def _compiled(rank: int) -> dict[str, Any]:
    """A program in several regions, beside which buckets travel."""
    found = {}
    for backend in ("aten", "inductor"):
        model = models.make("mlp")
        step = models.Train(model, models.OPTIMIZERS["adamw"](model.parameters()))
        step.config.enable_data_parallel(bucket_mb=0.0005)
        step.config.set_backend(backend)
        found[backend] = models.ran(step, model, "mlp", rank=rank, steps=8)
        executable = next(iter(step._runner.cache)).executable
        found[f"{backend} source"] = executable.source
    return found


def _work(rank: int) -> dict[str, Any]:
    return {
        "ours": {name: _trained(tg.step, one, rank)[:2] for name, one in WAYS.items()},
        "eager": {name: _trained(lambda body: body, one, rank)[:2] for name, one in WAYS.items()},
        "programs": {name: _ops(_trained(tg.step, one, rank)[2]) for name, one in WAYS.items()},
        "refused": {name: _said(one, rank) for name, one in REFUSED.items()},
        "in flight": _in_flight(rank, ("", "arena")),
        "shapes": {"aten": _other_shapes(rank, "aten")},
    }


def _work_with_inductor(rank: int) -> dict[str, Any]:
    return {
        "in flight": _in_flight(rank, ("inductor",)),
        "shapes": {"inductor": _other_shapes(rank, "inductor")},
        "compiled": _compiled(rank),
    }


def _ops(step: Any) -> tuple[int, list[str]]:
    runs = step._runner.cache.hits
    return runs, [str(node.target) for node in step.program.nodes if "c10d" in str(node.target)]


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run(_work, 2)


@pytest.fixture(scope="module")
def ranks_with_inductor() -> list[dict[str, Any]]:
    return run(_work_with_inductor, 2)


INDUCTOR = pytest.param("inductor", marks=pytest.mark.slow)


def _ranks_of(backend: str, request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    name = "ranks_with_inductor" if backend == "inductor" else "ranks"
    found: list[dict[str, Any]] = request.getfixturevalue(name)
    return found


@pytest.mark.parametrize("name", WAYS)
def test_a_collective_that_writes_its_argument(ranks, name):
    for rank in ranks:
        (losses, weight), (expected, other) = rank["ours"][name], rank["eager"][name]
        assert losses == expected
        assert torch.equal(weight, other)
        runs, ops = rank["programs"][name]
        assert runs == 3
        assert ops
        assert all(op.startswith("_c10d_functional.") for op in ops)


@pytest.mark.parametrize("name", REFUSED)
def test_one_that_no_program_can_hold(ranks, name):
    for rank in ranks:
        assert rank["refused"][name].startswith("UnknownCollective: the step calls the collective")
        assert name in rank["refused"][name]


@pytest.mark.parametrize("option", ["", "arena", INDUCTOR])
def test_memory_that_a_collective_reads(option, request):
    for rank in _ranks_of(option, request):
        found = rank["in flight"][option]
        assert found["runs"] >= 3
        assert found["close"]
        assert found["early"] == []
        assert found["beside"] >= 3
        if option != "inductor":
            assert found["equal"] == (True, True)


@pytest.mark.parametrize("kind", ["graph", "step"])
@pytest.mark.parametrize("backend", ["aten", INDUCTOR])
def test_a_rank_records_while_another_replays(backend, kind, request):
    for rank in _ranks_of(backend, request):
        losses, parameters, runs = rank["shapes"][backend][kind]
        expected, others, _ = rank["shapes"][backend]["eager"]
        assert runs >= 24  # three programs are made, each confirmed where all have one
        assert losses == (expected if backend == "aten" else pytest.approx(expected, abs=1e-5))
        for one, other in zip(parameters, others, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0 if backend == "aten" else 1e-5)


@pytest.mark.slow
def test_buckets_travel_beside_compiled_regions(ranks_with_inductor):
    for rank in ranks_with_inductor:
        found = rank["compiled"]
        assert found["inductor"]["losses"] == pytest.approx(found["aten"]["losses"], abs=1e-5)
        source = found["inductor source"]
        lines = [line.strip() for line in source.splitlines()]
        calls = [
            word
            for line in lines
            for word in ("_region_", "all_reduce_", "wait_tensor")
            if f"= _{word.strip('_')}" in line
        ]
        assert calls == [
            *("_region_", "all_reduce_") * 3,
            *("wait_tensor",) * 3,
        ]
