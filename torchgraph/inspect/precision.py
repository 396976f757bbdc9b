"""Dtypes of the ops of a program."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from torch import fx

from .._torch import OpOverload
from ..ir.ops import base_name
from ..ir.program import Phase, Program, provenance
from ..ir.values import leaves

_HALF = frozenset({torch.float16, torch.bfloat16})


@dataclass(frozen=True)
class Precision:
    """The ops of one phase that give tensors of one floating-point type."""

    dtype: torch.dtype
    phase: Phase
    ops: tuple[tuple[str, int], ...]
    """(name, how many), the most frequent first; a cast counts for the type that it gives."""


def precision(program: Program) -> tuple[Precision, ...]:
    """The dtypes in the forward and backward; nothing when all of it is in one precision."""
    found: dict[tuple[torch.dtype, Phase], Counter[str]] = {}
    for node in program.nodes:
        dtype, phase = _dtype(node), provenance(node).phase
        if dtype is not None and phase is not Phase.UPDATE:
            found.setdefault((dtype, phase), Counter())[_name(node)] += 1
    if not any(dtype in _HALF for dtype, _ in found):
        return ()
    order = sorted(found, key=lambda key: (key[0].itemsize, str(key[0]), list(Phase).index(key[1])))
    return tuple(Precision(*key, tuple(found[key].most_common())) for key in order)


def _dtype(node: fx.Node) -> torch.dtype | None:
    """The dtype of the first floating-point tensor that an op gives."""
    if not isinstance(node.target, OpOverload):
        return None
    for value in leaves(node.meta.get("val")):
        if isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
            return value.dtype
    return None


def _name(node: fx.Node) -> str:
    name = base_name(node.target)
    return f"cast from {_source(node)}" if name == "_to_copy" and _source(node) else name


def _source(node: fx.Node) -> str:
    source = node.args[0]
    if not isinstance(source, fx.Node):
        return ""  # a number, which torch.func's transforms make a tensor of
    before, after = source.meta["val"].dtype, node.meta["val"].dtype
    return "" if before is after else str(before).removeprefix("torch.")
