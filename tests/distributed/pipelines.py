"""Models with stages, and steps of them; what each rank computes is returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import torchgraph as tg
from torchgraph.nn.graph import GraphModule

STEPS = 20
Placed = Sequence[tuple[int, Any]]
"""(stage, ranks) of each block of a model, in order."""


class Mlp(nn.Module):
    """Four blocks; the last takes the first one's result, too: a skip over two stages."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(8, 16), nn.ReLU()),
                nn.Sequential(nn.Linear(16, 16), nn.Tanh()),
                nn.Linear(16, 16),
                nn.Linear(16, 4),
            ]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.blocks[0](x)
        return self.blocks[3](self.blocks[2](self.blocks[1](first)) + first * 2)


class Conv(nn.Module):
    """Batch norms in both stages, whose buffers a micro-batch writes."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()),
                nn.Sequential(nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
                nn.Sequential(nn.Flatten(), nn.Linear(24, 4)),
            ]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Dropped(nn.Module):
    """Draws in two stages, and beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5)),
                nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.3)),
                nn.Linear(16, 4),
            ]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.blocks[1](self.blocks[0](x))
        return self.blocks[2](hidden + torch.rand(16))


class Words(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(8, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.words(x) + self.places


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width, bias=False)
        self.mix = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        heads = [t.unflatten(-1, (2, -1)).transpose(1, 2) for t in (q, k, v)]
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        return x + self.mix(y.transpose(1, 2).flatten(2))


class Gpt(nn.Module):
    """Its last stage multiplies by the weight of its first one."""

    def __init__(self) -> None:
        super().__init__()
        last = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32, bias=False))
        layers = [Attention(16) for _ in range(3)]
        self.blocks = nn.ModuleList([Words(32, 16), *layers, last])
        last[1].weight = self.blocks[0].words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


MODELS: dict[str, type[nn.Module]] = {"mlp": Mlp, "conv": Conv, "dropout": Dropped, "gpt": Gpt}

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, 5e-3),
    "foreach": lambda p: torch.optim.AdamW(p, 5e-3, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, 5e-3, fused=True),
}


class Step(tg.Graph):
    """A training step; without ``placed`` one process does all of it.

    Args:
        options: verbs of the config, with their arguments.
    """

    def __init__(
        self,
        name: str,
        optimizer: str,
        placed: Placed = (),
        micro_batches: int = 4,
        **options: Any,
    ) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.model = MODELS[name]()
        self.add_optimizer(OPTIMIZERS[optimizer](self.model.parameters()))
        self.config.set_gradient_accumulation_steps(micro_batches)
        for verb, given in options.items():
            getattr(self.config, verb)(given)
        for block, (stage, ranks) in zip(self.model.blocks, placed, strict=bool(placed)):
            block.to(GraphModule).set_stage(stage, ranks)

    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(self.model(x).flatten(0, -2), y.flatten())
        loss.backward()
        return loss


def batch(name: str, number: int, size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + number)
    if name == "gpt":
        words = torch.randint(0, 32, (size, 9), generator=generator)
        return words[:, :-1], words[:, 1:]
    shape = (size, 1, 6, 6) if name == "conv" else (size, 8)
    x = torch.randn(shape, generator=generator)
    return x, torch.randint(0, 4, (size,), generator=generator)


def ran(graph: tg.Graph, name: str, steps: int = STEPS, first: int = 0) -> dict[str, Any]:
    """Losses, the state as all ranks have it in the end, and who ran the steps."""
    torch.manual_seed(7)
    losses = [graph(*batch(name, first + number)) for number in range(steps)]
    state = graph.state_dict()
    assert len(list(graph._runner.cache)) == 1
    return {
        "losses": None if losses[-1].is_meta else torch.stack(losses),
        "shapes": {tuple(loss.shape) for loss in losses},
        "model": {key: value.clone() for key, value in state["model"].items()},
        "optimizer": _tensors(state["_train"]),
        "runs": graph._runner.cache.hits,
        "generator": torch.get_rng_state(),
    }


def _tensors(held: object) -> list[torch.Tensor]:
    if isinstance(held, torch.Tensor):
        return [held.clone()]
    if isinstance(held, dict):
        held = list(held.values())
    return [one for item in held for one in _tensors(item)] if isinstance(held, list) else []


def reference(name: str, optimizer: str, **options: Any) -> dict[str, Any]:
    graph = Step(name, optimizer, **options)
    graph.config.set_look_again("off")  # as over ranks: a fused update rounds otherwise than eager
    return ran(graph, name)


def pipelined(name: str, optimizer: str, placed: Placed, **options: Any) -> dict[str, Any]:
    return ran(Step(name, optimizer, placed, **options), name)


def all_of(rank: int, cases: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    """What `pipelined` gives for each case, or the error that it ends with on this rank."""
    found: dict[str, Any] = {}
    for key, (name, optimizer, placed, options) in cases.items():
        found[key] = pipelined(name, optimizer, placed, **options)
        dist.barrier()
    return found
