"""Undoing of failed runs: the states copied beforehand, and the first write that stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import fx

from ...ir.program import Phase, Program, provenance
from ..raising import is_calling, may_raise

_FEW_BYTES = 2**20
"""The bytes copied for the sake of errors that no op announces, such as a lack of memory."""


class Write(NamedTuple):
    """A line that writes a state."""

    line: int
    node: fx.Node
    states: frozenset[fx.Node]
    """Placeholders."""


class Undoing(NamedTuple):
    """The states and lines that decide whether a failed run can be undone."""

    copied: tuple[int, ...]
    """The places, among the inputs, of states that are written while an op may still raise."""
    final: int
    """The first line that writes another one: a run that fails there, or later, is torn."""

    @classmethod
    def of(cls, program: Program, writes: Sequence[Write], end: int) -> Undoing:
        """Read off a lowered program that ends before the line ``end``."""
        order = {node: i for i, node in enumerate(program.nodes)}
        raises = max((i for node, i in order.items() if may_raise(node)), default=-1)
        copied = {s for one in writes if order[one.node] <= raises for s in one.states}
        backward = max((i for node, i in order.items() if _is_of_backward(node)), default=-1)
        early = {s for one in writes if order[one.node] <= backward for s in one.states} - copied
        if sum(map(_bytes, early)) <= _FEW_BYTES:
            copied |= early
        places = (i for i, node in enumerate(program.placeholders) if node in copied)
        final = (one.line for one in writes if not one.states <= copied)
        return cls(tuple(places), min(final, default=end))


def _is_of_backward(node: fx.Node) -> bool:
    target: object = node.target
    if is_calling(target):
        return any(map(_is_of_backward, target.inner()))
    return node.op == "call_function" and provenance(node).phase is Phase.BACKWARD


def _bytes(state: fx.Node) -> int:
    value = state.meta["val"]
    return value.nbytes if isinstance(value, torch.Tensor) else 0
