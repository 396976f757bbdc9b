"""Common subexpressions: compute once what is computed twice."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx

from ..ir import effects
from ..ir.aliasing import alias_sources, escaping, holds_memory
from ..ir.program import IN_PLACE, Program, provenance
from ..ir.rewriter import Rewriter
from .base import Pass


@dataclass(frozen=True)
class CommonSubexpressions(Pass):
    """Merges pure calls with equal targets and arguments.

    Two nodes whose memory reaches an output both stay: one output must not be another's memory. So
    do equal computations in different phases of the step: activation checkpointing repeats the
    forward in the backward on purpose.
    """

    name: ClassVar[str] = "cse"
    rows: ClassVar[bool] = True

    def exact(self, program: Program) -> bool:
        """Always."""
        return True

    def apply(self, program: Program, edit: Rewriter) -> None:
        """Merge equal nodes in program order: arguments before their users are compared."""
        outward = escaping(program)
        first: dict[Hashable, fx.Node] = {}
        for node in list(program.nodes):
            key = _key(node)
            if key is None:
                continue
            kept = first.setdefault(key, node)
            if kept is node or (kept in outward and node in outward):
                continue
            if node in outward:
                outward.add(kept)
            edit.replace(node, kept)


def _key(node: fx.Node) -> Hashable | None:
    """Equal for nodes that compute the same; None for a node that is never merged."""
    if node.op == "get_attr":
        return ("get_attr", node.target)
    if node.op != "call_function" or not effects.of(node).pure:
        return None
    try:
        key = (
            node.target,
            frozen(node.args),
            frozen(node.kwargs),
            _region(node),
            IN_PLACE in node.meta,
        )
        hash(key)
    except TypeError:
        return None
    return key


def _region(node: fx.Node) -> Hashable:
    """The phase of a node that allocates; one region for views and numbers, which do not."""
    if alias_sources(node) or not holds_memory(node.meta.get("val")):
        return None
    return provenance(node).phase


def frozen(value: object) -> object:
    """An argument, hashable, and different for 1, 1.0, True, 0.0 and -0.0."""
    if isinstance(value, (tuple, list)):
        return tuple(map(frozen, value))
    if isinstance(value, dict):
        return tuple(sorted((name, frozen(item)) for name, item in value.items()))
    if isinstance(value, slice):
        return ("slice", frozen(value.start), frozen(value.stop), frozen(value.step))
    if isinstance(value, float):
        return ("float", value.hex())
    if isinstance(value, complex):
        return ("complex", value.real.hex(), value.imag.hex())
    if isinstance(value, (bool, int)):
        return (type(value).__name__, value)
    if isinstance(value, torch.Tensor):
        return ("tensor", id(value))
    return value  # nodes, dtypes, devices, strings, None
