"""A model and optimizers with something for every check to look at."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from torchgraph.guards import ABSENT, Guards, Modules, Read
from torchgraph.live.step import Step


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


class Bound:
    """Models and optimizers, and guards as a capture of a step over them would make them."""

    def __init__(self) -> None:
        self.model = Model()
        self.outside = Block()
        self.roots: OrderedDict[str, nn.Module] = OrderedDict(model=self.model)
        parts = [[*self.model.one.parameters()], [*self.model.two.parameters()]]
        self.adam = torch.optim.AdamW(
            [{"params": parts[0]}, {"params": parts[1], "lr": 0.002}], lr=0.001
        )
        self.counts = Counts([{"params": [*self.model.head.parameters()]}])
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        self.adam.step()
        self.model.zero_grad()
        step = Step.scan(self.roots, [self.adam, self.counts])
        outsiders = Modules([*self.outside.modules()])
        self.guards = Guards(step, list(self._reads()), outsiders)

    def _reads(self) -> Iterator[Read]:
        for path, block in (("one", self.model.one), ("two", self.model.two), ("", self.outside)):
            for name in ("scale", "power", "mode", "sizes"):
                yield path, block, name, getattr(block, name)
            for name in ("extra", "momentum"):
                yield path, block, name, ABSENT
            yield path, block.norm, "training", block.norm.training
        yield "class Block", Block, "momentum", Block.momentum
        yield "model.head", self.model.head, "forward", self.model.head.forward
