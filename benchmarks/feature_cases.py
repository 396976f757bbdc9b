"""A training step with one feature, or with all: as one writes it in eager, and as a Graph."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import torchgraph as tg
from examples.models import GPT

VOCABULARY = 96
MAX_NORM, DECAY, LR = 1.0, 0.999, 1e-3
Step = Callable[[], Tensor]


@dataclass(frozen=True)
class Size:
    """Of the model and of one micro-batch."""

    layers: int = 12
    width: int = 128
    length: int = 64
    batch: int = 4


QUICK = Size(layers=1, width=16, length=8, batch=2)


@dataclass(frozen=True)
class Feature:
    """What is on. A step with accumulation takes ``k`` micro-batches."""

    amp: torch.dtype | None = None
    scaled: bool = False
    k: int = 1
    clipped: bool = False
    checkpointed: bool = False
    averaged: bool = False


FEATURES: dict[str, Feature] = {
    "none": Feature(),
    "AMP bfloat16": Feature(amp=torch.bfloat16),
    "AMP float16, scaler": Feature(amp=torch.float16, scaled=True),
    "accumulation, k = 8": Feature(k=8),
    "clipping": Feature(clipped=True),
    "checkpointing": Feature(checkpointed=True),
    "average": Feature(averaged=True),
}
FEATURES["all"] = Feature(torch.bfloat16, True, 8, True, True, True)
EAGER, GRAPH = "eager", "torchgraph"


class Checkpointed(nn.Module):
    """A block whose activations eager computes again."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = checkpoint(self.block, x, use_reentrant=False)
        return found


class Parts:
    """Model, optimizer and all else that both sides have, from one seed."""

    def __init__(self, feature: Feature, size: Size, device: torch.device) -> None:
        torch.manual_seed(0)
        self.feature, self.device = feature, device
        self.model: Any = GPT(
            VOCABULARY, block_size=size.length, layers=size.layers, width=size.width, dropout=0.1
        ).to(device)
        shape = (size.batch * feature.k, size.length + 1)
        tokens = torch.randint(VOCABULARY, shape, device=device)
        self.x, self.y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        self.optimizer: torch.optim.Optimizer = AdamW(self.model.parameters(), lr=LR)
        self.scaler = torch.amp.GradScaler(device.type, init_scale=1024.0, enabled=feature.scaled)
        if feature.averaged:
            average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
            self.optimizer.register_step_post_hook(lambda *_: average.update_parameters(self.model))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Of one micro-batch."""
        return F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())


class TrainGraph(tg.Graph):
    """The step as a Graph."""

    def __init__(self, parts: Parts, backend: str) -> None:
        super().__init__()
        feature = parts.feature
        self.model, self.loss = parts.model, parts.loss
        self.add_optimizer(parts.optimizer)
        self.set_grad_scaler(parts.scaler)
        self.config.set_backend(backend)
        self.config.set_gradient_accumulation_steps(feature.k)
        if feature.amp is not None:
            self.config.enable_amp(dtype=feature.amp)
        if feature.clipped:
            self.config.set_clip_grad_norm(MAX_NORM)
        if feature.checkpointed:
            for block in self.model.blocks:
                block.to(tg.nn.graph.GraphModule).activation_checkpointing = True

    def build(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self.loss(x, y)
        loss.backward()
        return loss


def graph_step(feature: Feature, size: Size, device: torch.device, backend: str) -> Step:
    """A call of the Graph."""
    parts = Parts(feature, size, device)
    graph = TrainGraph(parts, backend)
    return lambda: graph(parts.x, parts.y)


def eager_step(feature: Feature, size: Size, device: torch.device) -> Step:
    """The loop that the Graph stands for."""
    parts = Parts(feature, size, device)
    optimizer, scaler = parts.optimizer, parts.scaler
    if feature.checkpointed:
        parts.model.blocks = nn.Sequential(*map(Checkpointed, parts.model.blocks))

    def micro_batch(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(device.type, feature.amp) if feature.amp else nullcontext():
            loss = parts.loss(x, y)
        scaler.scale(loss / feature.k if feature.k > 1 else loss).backward()
        return loss.detach()

    def step() -> Tensor:
        batches = zip(parts.x.chunk(feature.k), parts.y.chunk(feature.k), strict=True)
        losses = [micro_batch(x, y) for x, y in batches]
        if feature.clipped:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parts.model.parameters(), MAX_NORM)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return losses[0] if feature.k == 1 else torch.stack(losses)

    return step


def make(name: str, side: str, size: Size, device: torch.device, *, backend: str = "aten") -> Step:
    """One side of a feature."""
    if side == EAGER:
        return eager_step(FEATURES[name], size, device)
    return graph_step(FEATURES[name], size, device, backend)


# --- what accumulation costs ----------------------------------------------------------------------


class Nothing(torch.optim.Optimizer):
    """Steps without a step: what is left is forward and backward."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> Any:
        """Leaves everything as it is."""


class Replay(TrainGraph):
    """Forward and backward of one micro-batch, whose gradients are returned."""

    def build(self, x: Tensor, y: Tensor) -> Any:
        loss = super().build(x, y)
        return loss, [parameter.grad for parameter in self.model.parameters()]


def replays(name: str, size: Size, device: torch.device, *, backend: str = "aten") -> Step:
    """As many forwards and backwards as the feature has micro-batches, and no update."""
    feature = FEATURES[name]
    parts = Parts(replace(feature, k=1), size, device)
    parts.optimizer = Nothing(parts.model.parameters())
    graph = Replay(parts, backend)

    def step() -> Tensor:
        for _ in range(feature.k):
            found = graph(parts.x, parts.y)
        loss: Tensor = found[0]
        return loss

    return step
