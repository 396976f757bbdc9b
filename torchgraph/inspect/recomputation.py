"""Savings and costs of activation checkpointing, by module."""

from __future__ import annotations

import statistics
import time
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from .._torch import OpOverload
from ..ir.program import RECOMPUTED, Program, Saving
from ..ir.values import leaves
from ..lower.memory.allocations import real

_RUNS = 3


@dataclass(frozen=True)
class Recomputation:
    """The checkpointed regions of one module, over all of its calls."""

    name: str
    kept_before: int
    """Bytes that its forward leaves for the backward, without checkpointing."""
    kept_after: int
    nodes: int
    """Ops that the backward repeats."""
    seconds: float
    """What these ops take in one step: each timed on its own, on zeros of its shapes."""


def collect(program: Program) -> tuple[Recomputation, ...]:
    """The checkpointed regions by name, in the order of the forward."""
    savings = [saving for record in program.history for saving in record.savings]
    if not savings:
        return ()
    seconds = _seconds(program)
    by_name: dict[str, list[Saving]] = {}
    for saving in sorted(savings, key=lambda saving: saving.number):
        by_name.setdefault(saving.region, []).append(saving)
    return tuple(
        Recomputation(
            name,
            sum(one.kept_before for one in group),
            sum(one.kept_after for one in group),
            sum(one.recomputed for one in group),
            sum(seconds.get(one.number, 0.0) for one in group),
        )
        for name, group in by_name.items()
    )


def _seconds(program: Program) -> dict[int, float]:
    """The time that the repeated ops take, by region. Equal ops are timed once."""
    timed: dict[Hashable, float] = {}
    found: dict[int, float] = {}
    for node in program.nodes:
        region = node.meta.get(RECOMPUTED)
        if region is None or not isinstance(node.target, OpOverload):
            continue
        key = (node.target, repr(_shapes(node.args)), repr(_shapes(node.kwargs)))
        if key not in timed:
            timed[key] = _timed(node)
        found[region] = found.get(region, 0.0) + timed[key]
    return found


def _shapes(value: Any) -> object:
    def shape(node: fx.Node) -> str:
        found = [(tuple(v.shape), v.stride(), v.dtype) for v in leaves(node.meta["val"])]
        return str(found)

    return fx.map_arg(value, shape)


def _timed(node: fx.Node) -> float:
    target: Any = node.target
    args, kwargs = fx.map_arg(node.args, _zeros), fx.map_arg(dict(node.kwargs), _zeros)
    value = next(leaf for leaf in leaves(node.meta["val"]) if leaf is not None)
    on_gpu = value.device.type == "cuda"
    times = []
    with torch.no_grad():
        for _ in range(_RUNS + 1):
            start = time.perf_counter()
            target(*args, **kwargs)
            if on_gpu:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def _zeros(node: fx.Node) -> Any:
    value = node.meta["val"]
    return type(value)(map(real, value)) if isinstance(value, (tuple, list)) else real(value)
