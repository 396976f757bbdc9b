"""Models, batches and loops for data-parallel tests; what each rank computes is returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import torchgraph as tg

Batch = tuple[torch.Tensor, torch.Tensor]


class GPT(nn.Module):
    """One block, whose output layer is the embedding's weight."""

    def __init__(self, words: int = 32, width: int = 16, length: int = 8) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width, bias=False)
        self.mix, self.last = nn.Linear(width, width), nn.LayerNorm(width)
        self.out = nn.Linear(width, words, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x) + self.place(torch.arange(x.shape[1]))
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        heads = [t.unflatten(-1, (2, -1)).transpose(1, 2) for t in (q, k, v)]
        y = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(self.last(x + self.mix(y.transpose(1, 2).flatten(2)))).flatten(0, 1)


class Unused(nn.Module):
    """``spare`` is used by nobody, ``odd`` by the last rank alone."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 4)
        self.odd, self.spare = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x).relu()
        if dist.get_rank() == dist.get_world_size() - 1:
            y = y + self.odd(x)
        return self.head(y)


def mlp(*, dropout: float = 0.0) -> nn.Module:
    layers = [nn.Linear(8, 32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, 32), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(32, 4))


def conv() -> nn.Module:
    norm = nn.BatchNorm2d(6)
    last = nn.Linear(6, 4)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, bias=False), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), last
    )


def synced() -> nn.Module:
    return nn.SyncBatchNorm.convert_sync_batchnorm(conv())


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "dropout": lambda: mlp(dropout=0.3),
    "conv": conv,
    "synced": synced,
    "gpt": GPT,
    "unused": Unused,
}

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, 5e-3),
}


def make(name: str) -> nn.Module:
    torch.manual_seed(1)
    return MODELS[name]()


def batch(name: str, step: int, size: int = 16) -> Batch:
    """The whole batch of a step."""
    generator = torch.Generator().manual_seed(100 + step)
    if name == "gpt":
        words = torch.randint(0, 32, (size, 9), generator=generator)
        return words[:, :-1], words[:, 1:]
    shape = (size, 1, 6, 6) if name in ("conv", "synced") else (size, 8)
    x = torch.randn(shape, generator=generator)
    return x, torch.randint(0, 4, (size,), generator=generator)


def shard(whole: Batch, rank: int, ranks: int) -> Batch:
    x, y = (t.chunk(ranks)[rank].contiguous() for t in whole)
    return x, y


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(x), y.flatten())


class Train(tg.Graph):
    """A step whose update is the Graph's."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer, **options)

    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = loss_of(self.model, x, y)
        loss.backward()
        return loss


def loop(model: nn.Module, optimizer: torch.optim.Optimizer, clip: float = 0.0) -> Callable:
    """The body of a training loop."""

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        return loss.detach()

    return step


def ran(
    step: Callable,
    model: nn.Module,
    name: str,
    steps: int = 20,
    rank: int | None = None,
    graph: Any = None,
) -> dict[str, Any]:
    """What comes of a run: losses, state, which gradients are there, and who ran it."""
    graph = graph or step
    ranks = 1 if rank is None else dist.get_world_size()
    torch.manual_seed(7 + (rank or 0))  # for dropout
    if name == "unused" and isinstance(graph, tg.Graph):  # ranks have other programs of it
        graph.config.set_agreement("collectives")
    losses = [step(*shard(batch(name, number), rank or 0, ranks)).item() for number in range(steps)]
    state = {k.removeprefix("module."): v.clone() for k, v in model.state_dict().items()}
    found: dict[str, Any] = {"losses": losses, "state": state}
    found["grads"] = [
        k.removeprefix("module.") for k, p in model.named_parameters() if p.grad is not None
    ]
    if isinstance(graph, tg.Graph):
        found["why"] = graph._runner.recordings.fallback.why
        found["runs"] = graph._runner.cache.hits
        found["ops"] = [str(node.target) for node in graph.program.nodes] if found["runs"] else []
    return found


def by_ddp(rank: int, name: str, optimizer: str, **options: Any) -> dict[str, Any]:
    model = DDP(make(name), **options)
    return ran(loop(model, OPTIMIZERS[optimizer](model.parameters())), model, name, rank=rank)


def by_graph(rank: int, name: str, optimizer: str, **options: Any) -> dict[str, Any]:
    model = make(name)
    step = Train(model, OPTIMIZERS[optimizer](model.parameters()))
    step.config.enable_data_parallel(**options)
    return ran(step, model, name, rank=rank)


def by_step(rank: int, name: str, optimizer: str, **options: Any) -> dict[str, Any]:
    model = make(name)
    step = tg.step(loop(model, OPTIMIZERS[optimizer](model.parameters())))
    step.config.enable_data_parallel(**options)
    return ran(step, model, name, rank=rank)


def by_graph_of_ddp(rank: int, name: str, optimizer: str, **options: Any) -> dict[str, Any]:
    model = DDP(make(name), **options)
    return ran(Train(model, OPTIMIZERS[optimizer](model.parameters())), model, name, rank=rank)


def by_step_of_ddp(rank: int, name: str, optimizer: str, **options: Any) -> dict[str, Any]:
    model = DDP(make(name), **options)
    step = tg.step(loop(model, OPTIMIZERS[optimizer](model.parameters())))
    return ran(step, model, name, rank=rank)


def alone(name: str, optimizer: str) -> dict[str, Any]:
    """One process on the whole batch."""
    model = make(name)
    return ran(loop(model, OPTIMIZERS[optimizer](model.parameters())), model, name)


OURS = {
    "graph": by_graph,
    "step": by_step,
    "graph of ddp": by_graph_of_ddp,
    "step of ddp": by_step_of_ddp,
}
