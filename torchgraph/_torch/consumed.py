"""Tensors that ``backward()`` was called on, which frees their history."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch


class _Here(threading.local):
    asks: Consumed | None = None
    """Who asks for this thread's backward passes; None for nobody."""


_here = _Here()
_watched: list[bool] = []


def _watch() -> None:
    """Patch torch's engine entry for good: to patch it anew takes as long as a small step's ops."""
    _watched.append(True)
    original: Any = getattr(torch.autograd, "_engine_run_backward", None)
    if original is None:
        return

    def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> object:
        asks = _here.asks
        if asks is not None:
            asks.runs += 1
        found = original(t_outputs, *args, **kwargs)
        if asks is not None and len(args) > 1 and args[1] is False:  # of keep_graph
            asks.roots += t_outputs
        return found

    autograd: Any = torch.autograd
    autograd._engine_run_backward = _engine_run_backward


def is_consumed(tensor: torch.Tensor, roots: Sequence[object]) -> bool:
    """True for a tensor that lies a few ops below one of ``roots``, or is one."""
    if id(tensor) in map(id, roots):
        return True
    wanted, reached = tensor.grad_fn, [one.grad_fn for one in roots if type(one) is torch.Tensor]
    for node in reached:
        if node is wanted:
            return True
        if node is not None and len(reached) < _NEAR:
            reached += [below for below, _ in node.next_functions]
    return False


_NEAR = 12
"""Nodes that are looked at."""


class Consumed:
    """The tensors that ``backward()`` is called on in the block, in this thread."""

    __slots__ = ("_before", "roots", "runs")

    def __init__(self) -> None:
        self.roots: list[object] = []
        self.runs = 0
        """Runs of the autograd engine."""

    def __enter__(self) -> list[object]:
        if not _watched:
            _watch()
        self._before, _here.asks = _here.asks, self
        return self.roots

    def __exit__(self, *_: object) -> None:
        _here.asks = self._before
