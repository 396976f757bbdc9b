"""Ranks of one process: what they compute, beside processes, one rank, and torch's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F

import torchgraph as tg
from tests.distributed import spawn
from torchgraph.distributed.errors import RanksOutOfStep
from torchgraph.errors import InvalidOption, NotSupported
from torchgraph.library import ValueMoved
from torchgraph.testing import run_on_ranks
from torchgraph.verify import lockstep

STEPS = 4


def all_reduce(tensor: torch.Tensor, ranks: int) -> torch.Tensor:
    return funcol.all_reduce(tensor / ranks, "sum", dist.group.WORLD)


def batches(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(10 + rank)
    return [(torch.randn(4, 8), torch.randn(4, 4)) for _ in range(STEPS)]


def model(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 4))


Made = tuple[Any, Sequence[tuple[torch.Tensor, ...]], nn.Module]
"""A Graph, its calls, and what it trains, which it calls ``net``."""


def data_parallel(rank: int, ranks: int) -> Made:
    """As `tg.step`: the function steps its optimizer."""
    net = model(0.1)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)

    @tg.step
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        for parameter in net.parameters():
            assert parameter.grad is not None
            parameter.grad.copy_(all_reduce(parameter.grad, ranks))
        optimizer.step()
        return loss

    return step, batches(rank), net


class Reduced(torch.autograd.Function):
    """The sum over ranks, each of which has the whole gradient of it."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor) -> torch.Tensor:
        return funcol.wait_tensor(funcol.all_reduce(part, "sum", dist.group.WORLD))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Part(nn.Module):
    """A rank's columns of the first product and rows of the second."""

    def __init__(self, rank: int, ranks: int) -> None:
        super().__init__()
        whole, width = model(), 16 // ranks
        mine = slice(rank * width, (rank + 1) * width)
        self.first = nn.Parameter(whole[0].weight.detach()[mine].clone())
        self.second = nn.Parameter(whole[3].weight.detach()[:, mine].clone())
        self.bias = nn.Parameter(whole[3].bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = F.relu(x @ self.first.t()) @ self.second.t()
        return (part if dist.get_world_size() == 1 else Reduced.apply(part)) + self.bias


class TensorParallel(tg.Graph):
    """Also returned: a mean over ranks, scattered and gathered again."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.add_optimizer(torch.optim.SGD(net.parameters(), 0.1))

    def build(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.net(x)
        loss = F.mse_loss(out, y)
        loss.backward()
        shard = funcol.reduce_scatter_single(out.detach(), "avg", 0, dist.group.WORLD)
        return loss, funcol.wait_tensor(funcol.all_gather_single(shard, 0, dist.group.WORLD))


def tensor_parallel(rank: int, ranks: int) -> Made:
    net = Part(rank, ranks)
    return TensorParallel(net), batches(0), net


class Plain(tg.Graph):
    """What is parallel about it is said by options, or by the model."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.add_optimizer(torch.optim.AdamW(net.parameters(), 1e-2))

    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(self.net(x), y)
        loss.backward()
        return loss


def by_option(rank: int, ranks: int, stage: int = 0) -> Made:
    net = model(0.1)
    graph = Plain(net)
    graph.config.enable_data_parallel()
    if stage:
        graph.config.enable_zero(stage=stage, shard_min_size=8)
    return graph, batches(rank), net


def accumulating(rank: int, ranks: int) -> Made:
    """Two micro-batches in a step, which communicates once."""
    graph, given, net = by_option(rank, ranks, 2)
    graph.config.set_gradient_accumulation_steps(2)
    return graph, given, net


def by_plan(rank: int, ranks: int) -> Made:
    """Columns of the first layer, rows of the second, by torch's own plan."""
    net = model()
    mesh = init_device_mesh("cpu", (ranks,))
    parallelize_module(net, mesh, {"0": ColwiseParallel(), "3": RowwiseParallel()})
    return Plain(net), batches(0), net


MAKERS: dict[str, Callable[[int, int], Made]] = {
    "data parallel": data_parallel,
    "tensor parallel": tensor_parallel,
    "enable_data_parallel": by_option,
    "ZeRO 1": partial(by_option, stage=1),
    "ZeRO 2": partial(by_option, stage=2),
    "ZeRO 3": partial(by_option, stage=3),
    "ZeRO 2, micro-batches": accumulating,
    "parallelize_module": by_plan,
}


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor.detach()


def trained(rank: int) -> dict[str, tuple[list[Any], dict[str, torch.Tensor]]]:
    """In a process of its own, over gloo."""
    found = {}
    for name, make in MAKERS.items():
        graph, given, net = make(rank, dist.get_world_size())
        outputs = [graph(*batch) for batch in given]
        assert graph.is_compiled
        found[name] = (outputs, {f"net.{n}": local(p) for n, p in net.named_parameters()})
    return found


@pytest.fixture(scope="module")
def processes() -> list[Any]:
    return spawn.run(trained, 2)


@pytest.mark.dist
@pytest.mark.parametrize("name", MAKERS)
def test_two_ranks_are_two_processes_of_gloo_to_the_bit(name, processes):
    ranks = run_on_ranks(lambda rank: MAKERS[name](rank, 2)[:2], 2)

    for rank, process in zip(ranks, processes, strict=True):
        outputs, states = process[name]
        assert len(outputs) == STEPS
        torch.testing.assert_close(rank.outputs, outputs, rtol=0, atol=0)
        assert {n: v for n, v in rank.states.items() if n in states}.keys() == states.keys()
        for n, value in states.items():
            torch.testing.assert_close(rank.states[n], value, rtol=0, atol=0)


@pytest.mark.parametrize("world", [2, 4])
def test_tensor_parallel_ranks_are_one_rank_on_the_whole(world):
    (whole,) = run_on_ranks(lambda rank: tensor_parallel(rank, 1)[:2], 1)
    ranks = run_on_ranks(lambda rank: tensor_parallel(rank, world)[:2], world)

    for rank in ranks:
        torch.testing.assert_close(rank.outputs, whole.outputs, rtol=1e-6, atol=1e-6)
        assert torch.equal(rank.states["net.bias"], ranks[0].states["net.bias"])
    first = torch.cat([rank.states["net.first"] for rank in ranks])
    second = torch.cat([rank.states["net.second"] for rank in ranks], 1)
    torch.testing.assert_close(first, whole.states["net.first"], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(second, whole.states["net.second"], rtol=1e-6, atol=1e-6)


def test_equal_batches_on_all_ranks_are_one_rank_to_the_bit():
    """Halves, added, are what they were."""

    def same(rank: int, ranks: int) -> Any:
        step, _, _ = data_parallel(rank, ranks)
        return step, batches(0)

    (whole,) = run_on_ranks(lambda rank: same(rank, 1), 1)
    for rank in run_on_ranks(lambda rank: same(rank, 2), 2):
        torch.testing.assert_close(rank.outputs, whole.outputs, rtol=0, atol=0)
        for name, value in whole.states.items():
            torch.testing.assert_close(rank.states[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_is_data_parallel_to_the_bit(stage, world):
    plain = run_on_ranks(lambda rank: by_option(rank, world)[:2], world)
    zero = run_on_ranks(lambda rank: by_option(rank, world, stage)[:2], world)

    for one, other in zip(plain, zero, strict=True):
        torch.testing.assert_close(one.outputs, other.outputs, rtol=0, atol=0)
    for name in ("net.0.weight", "net.3.weight"):
        parts = [rank.states[name] for rank in zero]
        assert len(parts[0]) == len(plain[0].states[name]) // world
        assert torch.equal(torch.cat(parts), plain[0].states[name])


def test_a_plan_of_torchs_is_one_rank():
    (whole,) = run_on_ranks(lambda rank: (Plain(model()), batches(0)), 1)
    for rank in run_on_ranks(lambda rank: by_plan(rank, 4)[:2], 4):
        torch.testing.assert_close(rank.outputs, whole.outputs, rtol=1e-6, atol=1e-6)


def other_seeds(rank: int, stage: int) -> Any:
    torch.manual_seed(rank)
    net = nn.Linear(8, 4)
    graph = Plain(net)
    graph.config.enable_data_parallel()
    graph.config.enable_zero(bool(stage), stage=max(1, stage), shard_min_size=1)
    return graph, batches(rank)


def other_seeds_of_dtensors(rank: int) -> Any:
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4))
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    parallelize_module(net, init_device_mesh("cpu", (2,)), plan)
    return Plain(net), batches(0)


def test_what_the_first_rank_would_send_has_to_be_there():
    """No rank's numbers are another's: where they would be sent, all have to begin with them."""
    for stage in (0, 2):
        with pytest.raises(InvalidOption, match=r"net\.weight of rank 1 is not that of rank 0"):
            run_on_ranks(partial(other_seeds, stage=stage), 2)
    with pytest.raises(InvalidOption, match="DTensor 0 of rank 1 is not that of rank 0"):
        run_on_ranks(other_seeds_of_dtensors, 2)


# --- what does not fit together -------------------------------------------------------------------


def summing(rank: int, count: int, op: str = "sum", rows: int = 4) -> Any:
    """A Graph that communicates ``count`` times."""

    class Sum(tg.Graph):
        def build(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(count):
                x = funcol.wait_tensor(funcol.all_reduce(x, op, dist.group.WORLD))
            return x

    return Sum(), [(torch.full((rows, 2), float(rank)),)]


def test_a_rank_that_does_not_come_is_named():
    with pytest.raises(
        RanksOutOfStep, match=r"rank 0 waits in all_reduce_\w+ \(all_reduce among"
    ) as found:
        run_on_ranks(lambda rank: summing(rank, 2 - rank), 2)
    assert "rank 1 has ended" in str(found.value)
    assert "test_local_ranks.py" in str(found.value)


@pytest.mark.parametrize(
    ("other", "what"),
    [({"op": "max"}, "reduce_op = max"), ({"rows": 3}, r"\(3, 2\)")],
    ids=["another reduction", "another shape"],
)
def test_what_ranks_bring_has_to_fit_together(other, what):
    with pytest.raises(RanksOutOfStep, match=f"place 1 of the group passes .*{what}"):
        run_on_ranks(lambda rank: summing(rank, 1, **(other if rank else {})), 2)


def test_a_branch_that_the_real_numbers_do_not_take():
    class Branches(tg.Graph):
        def build(self, x: torch.Tensor) -> torch.Tensor:
            total = funcol.wait_tensor(funcol.all_reduce(x.sum(), "sum", dist.group.WORLD))
            return x * 2 if total > 1.5 else x

    with pytest.raises(ValueMoved):
        run_on_ranks(lambda rank: (Branches(), [(torch.ones(1),)]), 2)


def test_what_is_refused():
    with pytest.raises(InvalidOption, match="one rank or more"):
        run_on_ranks(lambda rank: summing(rank, 1), 0)
    with pytest.raises(InvalidOption, match="no call"):
        run_on_ranks(lambda rank: (summing(rank, 1)[0], []), 2)
    with pytest.raises(InvalidOption, match=r"\[1, 2\] calls"):
        run_on_ranks(lambda rank: (summing(rank, 1)[0], summing(rank, 1)[1] * (1 + rank)), 2)

    def longer(rank: int) -> Any:
        return summing(rank, 1)[0], [(torch.ones(4, 2),), (torch.ones(5, 2),)]

    with pytest.raises(InvalidOption, match="one program runs all calls"):
        run_on_ranks(longer, 2)

    def momentum(rank: int) -> Any:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

        class Train(tg.Graph):
            def __init__(self) -> None:
                super().__init__()
                self.net = net
                self.add_optimizer(optimizer)

            def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                loss = F.mse_loss(self.net(x), y)
                loss.backward()
                return loss

        return Train(), batches(rank)

    with pytest.raises(NotSupported, match="momentum"):
        run_on_ranks(momentum, 2)
    assert not dist.is_initialized()


# --- the collectives themselves -------------------------------------------------------------------

OPS = torch.ops._c10d_functional


def test_programs_that_know_no_group():
    found = []

    def make(rank: int) -> Any:
        graph, given = summing(rank, 1)
        call = graph._runner.live.inputs.bind(given[0], {})
        found.append(
            graph._runner.programs.compiler.compile(
                graph._runner.programs.dry_outcome(call), call
            ).program
        )
        return graph, given

    run_on_ranks(make, 2)
    with pytest.raises(RanksOutOfStep, match="whose ranks are not known"):
        lockstep.run(found, [[torch.ones(4, 2)]] * 2, {})
