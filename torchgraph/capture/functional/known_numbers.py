"""Symbolic numbers of known value, put back where a trace wrote the value."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..._torch import node_of


def restore_numbers(node: fx.Node, args: object, kwargs: object, tracer: object) -> None:
    """Put the symbolic numbers of a call back where ``node`` recorded their known values."""
    node.args = _restore_numbers(node.args, args, tracer)
    node.kwargs = _restore_numbers(node.kwargs, kwargs, tracer)


def _restore_numbers(recorded: Any, given: object, tracer: object) -> Any:
    if isinstance(given, (torch.SymInt, torch.SymFloat)):
        return node_of(given, tracer) or recorded
    if isinstance(given, dict):
        return {
            key: _restore_numbers(value, given.get(key), tracer) for key, value in recorded.items()
        }
    if isinstance(given, (list, tuple)) and isinstance(recorded, (list, tuple)):
        pairs = zip(recorded, given, strict=False)
        restored = [_restore_numbers(old, new, tracer) for old, new in pairs]
        return type(recorded)([*restored, *recorded[len(restored) :]])
    return recorded
