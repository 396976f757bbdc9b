"""A model: a random row of blocks, with something that learns at its end."""

from __future__ import annotations

from . import functions, layers
from .source import Source


def model(source: Source) -> None:
    for _ in range(source.random.randint(1, 6)):
        source.pick(layers.BLOCKS if source.chance(0.5) else functions.BLOCKS)(source)
        if source.chance(0.3):
            source.forward.append("x = torch.tanh(x)")
    if source.chance(0.1):
        layers.unused(source)
    source.forward.append(f"x = {source.member('nn.Linear(8, 8)')}(x)")
