"""Parameters in parts: beside DDP, FSDP2, one process; what a rank holds; checkpoints."""

from __future__ import annotations

import copy
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import torchgraph as tg
from tests.distributed import spawn
from tests.support import thinned

pytestmark = pytest.mark.dist
STEPS = 20
Numbers = tuple[list[float], list[torch.Tensor]]


class Tied(nn.Module):
    """A small language model, its head tied to the embedding, with rows that two do not divide."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(33, 16)
        self.first, self.second = nn.Linear(16, 31), nn.Linear(31, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.table(tokens)
        hidden = hidden + self.second(F.gelu(self.first(hidden)))
        return F.linear(hidden, self.table.weight)


class Conv(nn.Module):
    """With BatchNorm, whose statistics are each rank's own until they are spread."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.norm(self.conv(images))).mean((2, 3)))


def batch(kind: str, number: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(100 * number + rank)
    if kind == "tied":
        tokens = torch.randint(33, (2, 8))
        return tokens, tokens.roll(-1, 1)
    return torch.randn(4, 3, 6, 6), torch.randint(5, (4,))


def made(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return Tied() if kind == "tied" else Conv()


def loss_of(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(out.flatten(0, -2), target.flatten())


class Train(tg.Graph):
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)
        if options.get("parallel", True):
            self.config.enable_data_parallel(bucket_mb=options.get("bucket", 25.0))
        if stage := options.get("stage"):
            self.config.enable_zero(True, stage=stage, shard_min_size=options.get("least", 1))
        if clip := options.get("clip"):
            self.config.set_clip_grad_norm(clip)
        if scaler := options.get("scaler"):
            self.set_grad_scaler(scaler)
        self.config.set_gradient_accumulation_steps(options.get("micro", 1))

    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = loss_of(self.model(x), y)
        loss.backward()
        return loss


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    if name == "sgd":
        return torch.optim.SGD(parameters, 0.1, momentum=0.9)
    if name == "foreach":
        return torch.optim.AdamW(parameters, 1e-2, foreach=True)
    return torch.optim.AdamW(parameters, 1e-2, fused=name == "fused")


def whole(model: nn.Module) -> list[torch.Tensor]:
    held = (p.detach() for p in model.parameters())
    return [p.full_tensor() if isinstance(p, DTensor) else p.clone() for p in held]


def trained(
    kind: str, rank: int, name: str, *, steps: int = STEPS, **options: Any
) -> tuple[Numbers, Train]:
    model = made(kind)
    graph = Train(model, optimizer_of(name, model), **options)
    losses = [float(graph(*batch(kind, i, rank)).mean()) for i in range(steps)]
    return (losses, whole(model)), graph


def by_ddp(kind: str, rank: int, name: str, clip: float = 0.0) -> Numbers:
    model = made(kind)
    optimizer, wrapped = optimizer_of(name, model), DistributedDataParallel(model)
    losses = []
    for i in range(STEPS):
        x, y = batch(kind, i, rank)
        optimizer.zero_grad()
        loss = loss_of(wrapped(x), y)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses, whole(model)


def by_fsdp(rank: int, world: int, *, reshard: bool, ours: bool) -> tuple[Numbers, int]:
    model, mesh = made("tied"), init_device_mesh("cpu", (world,))
    for part in (model.first, model.second, model):
        fully_shard(part, mesh=mesh, reshard_after_forward=reshard)
    optimizer = optimizer_of("adam", model)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run = tg.step(step) if ours else step
    losses = []
    for i in range(STEPS):
        x, y = batch("tied", i, rank)
        losses.append(run(x, y).item())
        if i == 6:
            with torch.no_grad():
                model(x)  # an evaluation of the user's own, by FSDP's hooks
    model.reshard()
    return (losses, whole(model)), run.report().calls.programs if ours else 0


def held_by(graph: Train) -> dict[str, float]:
    """The share that this rank holds: of parameters, of optimizer state."""
    parameters = list(graph.model.parameters())
    slots = [
        value
        for state in graph._runner.live.optimizers[0].state.values()
        for value in state.values()
        if value.ndim
    ]

    def share(tensors: list[torch.Tensor]) -> float:
        here = sum(t.to_local().numel() if isinstance(t, DTensor) else t.numel() for t in tensors)
        return here / sum(t.numel() for t in tensors)

    return {"parameters": share(parameters), "state": share(slots)}


def outside(rank: int) -> list[bool]:
    """What the user does with a model in parts besides calling the Graph."""
    _, graph = trained("tied", rank, "adam", steps=4, stage=2)
    model, plain = graph.model.to(nn.Module), made("tied")
    for own, other in zip(plain.parameters(), whole(model), strict=True):
        own.data.copy_(other)
    x, y = batch("tied", 9, rank)
    found = [torch.equal(model(x), plain(x)), torch.equal(copy.deepcopy(model)(x), plain(x))]
    for one in (model, plain):
        loss_of(one(x), y).backward()
    for own, other in zip(model.parameters(), plain.parameters(), strict=True):
        dist.all_reduce(other.grad)
        found.append(torch.allclose(own.grad.full_tensor(), other.grad / 2, atol=1e-6))
    return [*found, isinstance(model.table.weight, DTensor), model.table.weight.shape == (33, 16)]


def is_freed(rank: int) -> bool:
    """Whether a Graph goes with its last name, though torch's caches keep what DTensors met."""
    graph = weakref.ref(trained("tied", rank, "adam", steps=4, stage=2)[1])
    gc.collect()
    return graph() is None


def all_cases(rank: int, world: int) -> dict[str, Any]:
    found: dict[str, Any] = {"outside": outside(rank)} if world == 2 else {}
    found["freed"] = is_freed(rank)
    for kind in ("tied", "conv"):
        for name in ("sgd", "adam"):
            found[f"ddp {kind} {name}"] = by_ddp(kind, rank, name)
            for stage in (1, 2, 3):
                numbers, graph = trained(kind, rank, name, stage=stage, bucket=0.002)
                found[f"{stage} {kind} {name}"] = numbers
                found[f"held {stage} {kind} {name}"] = held_by(graph)
                found[f"calls {stage} {kind} {name}"] = graph.report().calls.programs
                if (kind, name) == ("tied", "adam"):
                    found[f"ops {stage}"] = [str(node.target) for node in graph.program.nodes]
    if world > 2:
        return found
    for name in ("fused", "foreach"):
        found[f"ddp tied {name}"] = by_ddp("tied", rank, name)
        found[f"2 tied {name}"], _ = trained("tied", rank, name, stage=2)
    found["ddp clipped"] = by_ddp("tied", rank, "sgd", clip=0.5)
    found["clipped"], _ = trained("tied", rank, "sgd", stage=2, clip=0.5)
    found["micro plain"], _ = trained("tied", rank, "sgd", micro=2)
    found["micro"], graph = trained("tied", rank, "sgd", stage=2, micro=2)
    found["micro reduces"] = sum("reduce_scatter" in str(n.target) for n in graph.program.nodes)
    found["small"] = [type(p).__name__ for p in small(rank).parameters()]
    for reshard in (True, False):
        for ours in (True, False):
            found[f"fsdp {reshard} {ours}"] = by_fsdp(rank, world, reshard=reshard, ours=ours)
    return found


def small(rank: int) -> nn.Module:
    """Of its parameters none is large enough to be cut."""
    return trained("tied", rank, "sgd", steps=3, stage=2, least=10**6)[1].model.to(nn.Module)


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    return spawn.run(all_cases, 2, 2)


@pytest.fixture(scope="module")
def four() -> list[dict[str, Any]]:
    return spawn.run(all_cases, 4, 4)


def same(one: Numbers, other: Numbers) -> bool:
    return one[0] == other[0] and all(map(torch.equal, one[1], other[1]))


def near(one: Numbers, other: Numbers) -> bool:
    losses = torch.tensor(one[0]), torch.tensor(other[0])
    pairs = [losses, *zip(one[1], other[1], strict=True)]
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in pairs)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("kind", ["tied", "conv"])
def test_two_ranks_have_the_bits_of_ddp(two, kind, name, stage):
    for rank in two:
        assert same(rank[f"{stage} {kind} {name}"], rank[f"ddp {kind} {name}"])
        assert rank[f"calls {stage} {kind} {name}"] >= STEPS - 4


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("kind", ["tied", "conv"])
def test_four_ranks_have_the_numbers_of_ddp(four, kind, stage):
    for rank in four:
        assert near(rank[f"{stage} {kind} sgd"], rank[f"ddp {kind} sgd"])
        assert same(([], four[0][f"{stage} {kind} sgd"][1]), ([], rank[f"{stage} {kind} sgd"][1]))


@pytest.mark.parametrize("name", ["fused", "foreach"])
def test_other_forms_of_an_update(two, name):
    for rank in two:
        assert same(rank[f"2 tied {name}"], rank[f"ddp tied {name}"])


def test_clipping_is_over_whole_parameters(two):
    for rank in two:
        assert near(rank["clipped"], rank["ddp clipped"])


def test_gradients_of_micro_batches_are_reduced_once(two):
    for rank in two:
        assert near(rank["micro"], rank["micro plain"])
        assert rank["micro reduces"] == 1


@pytest.mark.parametrize("world", thinned([2, 4], keep=[2]))
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_rank_holds_its_part(request, world, stage):
    for rank in request.getfixturevalue("two" if world == 2 else "four"):
        for share in rank[f"held {stage} tied adam"].values():
            assert share <= 1 / world + 0.05


def test_what_stays_whole_is_on_each_rank(two):
    assert {kind for rank in two for kind in rank["small"]} == {"DTensor"}


def test_collectives_of_the_stages(two):
    counts = {}
    for stage in (1, 2, 3):
        ops = two[0][f"ops {stage}"]
        kinds = ("all_gather_into_tensor", "reduce_scatter", "all_reduce")
        counts[stage] = [sum(kind in op for op in ops) for kind in kinds]
    gathers = counts[2][0]
    assert counts[1] == [gathers, 0, gathers]
    assert counts[2] == [gathers, gathers, 0]
    assert counts[3][0] > gathers
    assert counts[3][1:] == [gathers, 0]


def test_the_model_outside_of_the_graph(two):
    for rank in two:
        assert all(rank["outside"])


def test_a_graph_is_freed(two):
    assert all(rank["freed"] for rank in two)


@pytest.mark.parametrize("reshard", [True, False])
def test_fully_shard_as_it_is(two, reshard):
    for rank in two:
        ours, programs = rank[f"fsdp {reshard} True"]
        assert same(ours, rank[f"fsdp {reshard} False"][0])
        assert programs >= STEPS - 6


# --- checkpoints ----------------------------------------------------------------------------------


def shard(number: int, rank: int, world: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(number)
    tokens = torch.randint(33, (8, 8)).chunk(world)[rank]
    return tokens, tokens.roll(-1, 1)


def goes_on(graph: Train, rank: int, world: int) -> list[float]:
    """The losses over the whole batch of three more steps."""
    found = []
    for i in range(5, 8):
        loss = graph(*shard(i, rank, world)).detach().clone()
        dist.all_reduce(loss)
        found.append(loss.item() / world)
    return found


def saving(rank: int, world: int, path: str) -> list[float]:
    model = made("tied")
    graph = Train(model, optimizer_of("adam", model), stage=3)
    for i in range(5):
        graph(*shard(i, rank, world))
    dcp.async_save({"graph": graph.state_dict()}, checkpoint_id=path).result()
    return goes_on(graph, rank, world)


def loading(rank: int, world: int, path: str, stage: int) -> list[float]:
    model = made("tied")
    graph = Train(model, optimizer_of("adam", model), stage=stage)
    for i in range(2):
        graph(*shard(50 + i, rank, world))  # the optimizer has state then
    state = graph.state_dict()
    dcp.load({"graph": state}, checkpoint_id=path)
    graph.load_state_dict(state)
    return goes_on(graph, rank, world)


def in_eager(rank: int, path: str) -> float:
    model = made("tied")
    state = {"graph": {"model": model.state_dict()}}
    dcp.load(state, checkpoint_id=path)
    model.load_state_dict(state["graph"]["model"])
    x, y = shard(5, 0, 1)
    return loss_of(model(x), y).item()


ELSEWHERE = [(2, 3), (4, 1), (1, 0), (2, 0)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    path = tmp_path_factory.mktemp("checkpoint")
    return path, spawn.run(saving, 2, 2, str(path))[0]


@pytest.mark.parametrize("there", thinned(ELSEWHERE, keep=[(2, 3), (1, 0)]))
def test_a_checkpoint_goes_on_elsewhere(saved, there):
    (path, expected), (world, stage) = saved, there
    found = spawn.run(loading, world, world, str(path), stage)[0]
    assert found == pytest.approx(expected, abs=0 if world == 2 else 1e-6)


def test_a_checkpoint_in_a_plain_model(saved):
    path, expected = saved
    assert spawn.run(in_eager, 1, str(path))[0] == pytest.approx(expected[0], abs=1e-6)
