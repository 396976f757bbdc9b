"""The rounding of long sums: it grows with what is added up, not with what comes out.

The gradient of a bias is a sum over all rows. Compiled code adds them up in another order, and two
orders are apart by the rounding of the terms, which may be far larger than that of a result in
which they cancel. How large the terms are is known before the sum runs, so that such a difference
needs no run with noise (`rounding`) to be explained.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ..ir.aliasing import alias_sources, has_strides
from ..ir.nodes import item
from .compare import Gap, tight
from .rounding import MARGIN, Noise
from .run import arguments

_aten = torch.ops.aten


class Sums:
    """For each sum of a run, how far apart two orders of its terms may be."""

    def __init__(self) -> None:
        self._allowed: dict[fx.Node, dict[int, float]] = {}
        """By node, then by the index of the result; 0 where there is one."""

    def before(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> None:
        """Note the terms of ``node``, where it is a sum, before it runs."""
        if (allowed := _SUMS.get(node.target)) is not None:
            self._allowed[node] = allowed(*arguments(node, values)[0])

    def gap(self, node: object, value: object) -> Gap:
        """The difference between two orders of a sum whose result is ``value``; else none."""
        allowed = self._of(node)
        if not allowed or not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return Gap()
        return Gap(tight(value, flips=False).size + allowed)

    def _of(self, node: object) -> float:
        """The allowance of the sum that ``node`` is, or is a view of."""
        index = 0
        while isinstance(node, fx.Node):
            if node in self._allowed:
                return self._allowed[node].get(index, 0.0)
            source, index = node.args[0] if node.args else None, 0
            if node.target is operator.getitem and source in self._allowed:
                index = item(node)
            elif node.target is not operator.getitem and not _is_view(node):
                return 0.0
            node = source
        return 0.0


def _is_view(node: fx.Node) -> bool:
    return bool(alias_sources(node)) and node.target is not _aten.view.dtype


def _sum(terms: torch.Tensor, dims: Sequence[int] | None = None, *_: object) -> dict[int, float]:
    return {0: _allowed(terms, dims)}


def _layer_norm(
    gradient: torch.Tensor,
    value: torch.Tensor,
    shape: Sequence[int],
    mean: torch.Tensor,
    factor: torch.Tensor,
    *_: object,
) -> dict[int, float]:
    """Of weight and bias; the gradient of the value is no sum over rows."""
    rows = range(value.ndim - len(shape))
    if not rows:
        return {}
    return {1: _allowed((value - mean) * factor * gradient, rows), 2: _allowed(gradient, rows)}


def _embedding(
    gradient: torch.Tensor, indices: torch.Tensor, count: int, *_: object
) -> dict[int, float]:
    """Of a table with few rows, as if one of them took all; a larger table is left to noise."""
    if count > indices.numel():
        return {}
    rows = gradient.reshape(-1, gradient.shape[-1])
    return {0: _allowed(rows, [0])}


def _allowed(terms: torch.Tensor, dims: Sequence[int] | None) -> float:
    """How far apart two orders of a sum over ``dims`` may be; the largest of all results.

    That is the rounding of the magnitudes' sum, but no more than what a run with noise would show:
    with the number of terms the first grows as that number, the second, as rounding does, as its
    root. From some hundred terms on the second is smaller. A sum of 16 bits is taken in 32.
    """
    if not terms.is_floating_point() or not terms.numel() or not has_strides(terms):
        return 0.0
    wide = torch.promote_types(terms.dtype, torch.float32)
    over = None if dims is None else tuple(dims)
    totals = [torch.linalg.vector_norm(terms, power, over, dtype=wide) for power in (1, 2)]
    each = tight(totals[0].max(), flips=False).size
    noise = MARGIN * Noise.FINE.amplitude(wide) * float(totals[1].max())
    return min(each, noise)


_SUMS: Mapping[Any, Callable[..., dict[int, float]]] = {
    _aten.sum.default: _sum,
    _aten.sum.dim_IntList: _sum,
    _aten.native_layer_norm_backward.default: _layer_norm,
    _aten.embedding_dense_backward.default: _embedding,
}
