"""Idioms of parameters: replaced, tied, hooked, parametrized, held by no module."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from .idioms import Idiom, entropy, labelled, momentum, normal


class DataAssigned(nn.Module):
    """Weights are clamped and a running norm is replaced through ``.data``."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("norm", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.linear.weight.data = self.linear.weight.data.clamp(-0.3, 0.3)
        self.norm.data = 0.5 * self.norm + 0.5 * x.detach().norm()
        return self.linear(x) / self.norm


class Scaled(nn.Module):
    """A parameter that another one takes the place of in the first forward pass, as lazy ones."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(1))
        self.ready = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.ready:
            old = self.scale
            self.scale = nn.Parameter(1 / x.detach().std(0), requires_grad=False)
            self.ready = old is not self.scale
        return self.linear(x * self.scale)


class Row:
    """No module, and nothing that a module knows: weights in a plain object."""

    def __init__(self, size: int) -> None:
        self.weight = torch.randn(size, size).mul_(0.3).requires_grad_()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class Outside(nn.Module):
    """Parameters in a plain object, a list of tuples, a closure and a partial."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.row = Row(4)
        listed = nn.Parameter(torch.ones(4))
        closed = nn.Parameter(torch.zeros(4))
        bound = nn.Parameter(torch.full((4,), 0.5))
        self.steps: list[tuple[str, nn.Parameter]] = [("scale", listed)]
        self.shift: Callable[[torch.Tensor], torch.Tensor] = lambda x: x + closed
        self.gate = functools.partial(torch.mul, bound)
        self.hidden = (self.row.weight, listed, closed, bound)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.row(self.linear(x)))
        for _, scale in self.steps:
            x = x * scale
        return self.gate(self.shift(x)).sum(0)


def hidden(model: nn.Module) -> Sequence[torch.Tensor]:
    return model.hidden


def with_hidden(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam([*model.parameters(), *hidden(model)], lr=1e-2)


class Symmetric(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() + weight.triu(1).transpose(-1, -2)


def parametrized() -> nn.Module:
    """Spectral norm, weight norm, a parametrization of one's own, an orthogonal matrix."""
    first = parametrizations.spectral_norm(nn.Linear(6, 6))
    second = parametrizations.weight_norm(nn.Linear(6, 6))
    third, last = nn.Linear(6, 6), nn.Linear(6, 3)
    parametrize.register_parametrization(third, "weight", Symmetric())
    parametrizations.orthogonal(last, "weight")
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third, last)


def pruned() -> nn.Module:
    """Weights that hooks compute before each forward pass and set as plain attributes."""
    first, second = nn.Linear(6, 6), nn.utils.spectral_norm(nn.Linear(6, 3))
    prune.l1_unstructured(first, "weight", amount=0.5)
    return nn.Sequential(first, nn.ReLU(), second)


IDIOMS = [
    Idiom("data_assigned", DataAssigned, normal((5, 4), steps=4), optimizer=momentum),
    Idiom("parameter_replaced_in_forward", Scaled, normal((5, 4), steps=4)),
    Idiom(
        "parameters_that_no_module_holds",
        Outside,
        normal((5, 4), steps=4),
        optimizer=with_hidden,
        outside=hidden,
    ),
    Idiom("parametrizations", parametrized, labelled((5, 6), 3), entropy, momentum),
    Idiom("weights_set_by_hooks", pruned, labelled((5, 6), 3, 4), entropy, writes=True),
]
