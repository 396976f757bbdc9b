"""A Graph with something for every check to look at, and the program that it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import torchgraph as tg
from torchgraph.guards import Guards


class Block(nn.Module):
    """Parameters, a buffer, attributes of every kind, a parameter that is None."""

    momentum = 0.25

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 4)
        self.right = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.scale = 0.5
        self.power = 2
        self.mode = "plain"
        self.sizes = (1, 2.0)
        self.register_buffer("mean", torch.zeros(4))
        self.register_parameter("shift", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.right(torch.relu(self.norm(self.left(x)))) * self.scale**self.power
        out = out - self.mean * self.momentum * self.sizes[1]
        if getattr(self, "extra", None) is not None or self.mode != "plain":
            return out + 1
        return out


class Model(nn.Module):
    """Blocks by name; one has a hook, one a forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict({"one": Block(), "two": Block()})
        self.head = nn.Linear(4, 2)
        self.one.register_forward_hook(lambda module, args, out: out * 2)
        self.head.forward = lambda x: nn.functional.linear(x, self.head.weight, self.head.bias)  # type: ignore[method-assign]
        self.head.weight.register_hook(lambda grad: grad * 0.5)

    @property
    def one(self) -> Block:
        """The first block."""
        return self.blocks["one"]  # type: ignore[return-value]

    @property
    def two(self) -> Block:
        """The second block."""
        return self.blocks["two"]  # type: ignore[return-value]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks["two"](self.blocks["one"](x)))


class Counts(torch.optim.Optimizer):
    """Momentum with slots that are tensors, Python numbers, and lists and dicts of both."""

    def __init__(self, groups: Any, lr: float = 0.01) -> None:
        defaults = {
            "lr": lr,
            "betas": (0.5, 1),
            "factors": [1.0, 2],
            "name": "counts",
            "flag": False,
        }
        super().__init__(groups, defaults)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {
                    "step": 0,
                    "weight": 1.0,
                    "mean": torch.zeros_like(p),
                    "history": [torch.zeros_like(p), 0],
                    "inner": {"largest": torch.zeros_like(p)},
                }

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                state["step"] += 1
                state["weight"] *= group["betas"][0]
                state["mean"].lerp_(p.grad, group["betas"][0])
                state["history"][0].copy_(p.grad)
                state["inner"]["largest"].copy_(torch.maximum(state["inner"]["largest"], p.grad))
                p.add_(state["mean"] + state["history"][0], alpha=-group["lr"])


outside = Block()


class Train(tg.Graph):
    """A training step that also calls a module which no attribute holds."""

    def __init__(self, model: Model, *optimizers: torch.optim.Optimizer) -> None:
        super().__init__()
        self.model = model
        for optimizer in optimizers:
            self.add_optimizer(optimizer)

    def build(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.model(outside(x)).square().mean()
        loss.backward()
        return loss


class Bound:
    """A model, its optimizers, and the guards of the program that serves the next call."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Model()
        parts = [[*self.model.one.parameters()], [*self.model.two.parameters()]]
        self.adam = torch.optim.AdamW(
            [{"params": parts[0]}, {"params": parts[1], "lr": 0.002}], lr=0.001
        )
        self.counts = Counts([{"params": [*self.model.head.parameters()]}])
        self.graph = Train(self.model, self.adam, self.counts)
        self.call()
        self.call()
        assert self.guards.broken() == ""

    def call(self) -> torch.Tensor:
        """One step."""
        return self.graph(torch.ones(3, 4))  # type: ignore[no-any-return]

    @property
    def guards(self) -> Guards:
        """Those of the newest program."""
        return [*vars(self.graph)["_cache"]][-1].guards  # type: ignore[no-any-return]
