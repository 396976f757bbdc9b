"""The text of a whole program."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import indent

from .calls import calls
from .evaluating import evaluating
from .graphs import graph
from .options import options
from .source import Source
from .steps import step

TEMPLATE = """\
import collections
import copy
import types

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchgraph as tg


{helpers}class Net(nn.Module):
    def __init__(self):
        super().__init__()
{members}

    def forward(self, x):
{forward}
        return x


def run(graphed, look):
    torch.manual_seed({seed})
    model = Net()
{setup}

    def step({parameters}):
{cells}{step}

    eager = step
    saved = copy.deepcopy(model.state_dict())
    if graphed:
{graphed}
    kept = []
    static = torch.ones(4, 8)
    given = torch.Generator().manual_seed({seed})
    for call in range({calls}):
        x, y = torch.randn(2, 4, 8, generator=given)
        t = torch.randint(8, (4,), generator=given)
{before_call}
        found = step({arguments})
        kept.append(found)
        look(found=found, {watched})
    look(kept=kept)
"""


def program(seed: int, *, compiled: bool = False) -> tuple[str, float]:
    """The program of a seed, and how far its numbers may be from eager's."""
    source = Source(seed, smooth=compiled)
    source.smooth = compiled or source.chance(0.06)
    source.tolerance = 1e-3 if source.smooth else 0.0
    source.pick((step, step, graph))(source)
    options(source)
    if source.chance(0.2) and not source.smooth:
        evaluating(source)
    calls(source)
    source.config.append(f"set_backend('{'inductor' if compiled else 'aten'}')")
    config = [f"step.config.{call}" for call in source.config]
    watched = ", ".join(f"{name}={value}" for name, value in source.watched.items())
    text = TEMPLATE.format(
        seed=seed,
        helpers="".join(f"{line}\n" for line in source.helpers),
        members=_lines(source.members, 2),
        forward=_lines(source.forward, 2),
        setup=_lines(source.setup, 1),
        cells=f"        nonlocal {', '.join(source.cells)}\n" if source.cells else "",
        step=_lines(source.step, 2),
        parameters=", ".join(source.parameters),
        arguments=", ".join(source.arguments),
        before_call=_lines(source.before_call, 2),
        watched=watched,
        calls=source.random.randint(8, 12),
        graphed=_lines([*source.graphed, *config], 2),
    )
    return text, source.tolerance


def _lines(lines: Iterable[str], depth: int) -> str:
    return indent("\n".join(lines), "    " * depth)
