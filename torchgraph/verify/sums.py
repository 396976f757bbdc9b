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

from ..ir.aliasing import alias_sources
from .compare import Gap, tight
from .run import arguments

_aten = torch.ops.aten


class Sums:
    """For each sum of a run the largest total of the magnitudes of its terms."""

    def __init__(self) -> None:
        self._totals: dict[fx.Node, dict[int, float]] = {}
        """By node, then by the index of the result; 0 where there is one."""

    def before(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> None:
        """Note the terms of ``node``, where it is a sum, before it runs."""
        if (totals := _TOTALS.get(node.target)) is not None:
            self._totals[node] = totals(*arguments(node, values)[0])

    def gap(self, node: object, value: object) -> Gap:
        """The difference between two orders of a sum whose result is ``value``; else none.

        A sum of 16 bits is taken in 32.
        """
        total = self._total(node)
        if not total or not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return Gap()
        wide = torch.promote_types(value.dtype, torch.float32)
        terms = tight(torch.tensor([total], dtype=wide), flips=False)
        return Gap(tight(value, flips=False).size + terms.size)

    def _total(self, node: object, index: int = 0) -> float:
        while isinstance(node, fx.Node):
            if node in self._totals:
                return self._totals[node].get(index, 0.0)
            if node.target is operator.getitem and isinstance(node.args[1], int):
                index = node.args[1]
            elif not alias_sources(node):
                return 0.0
            node = node.args[0]
        return 0.0


def _sum(terms: torch.Tensor, dims: Sequence[int] | None = None, *_: object) -> dict[int, float]:
    return {0: _largest(terms, dims)}


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
    return {1: _largest((value - mean) * factor * gradient, rows), 2: _largest(gradient, rows)}


def _embedding(
    gradient: torch.Tensor, indices: torch.Tensor, count: int, *others: Any
) -> dict[int, float]:
    """A table with more rows than are looked up has no long sums: it is as large as the model."""
    if count > indices.numel():
        return {}
    found = _aten.embedding_dense_backward.default(gradient.abs(), indices, count, *others)
    return {0: _largest(found, ())}


def _largest(terms: torch.Tensor, dims: Sequence[int] | None) -> float:
    if not terms.is_floating_point() or not terms.numel():
        return 0.0
    if dims is None or tuple(dims):
        wide = torch.promote_types(terms.dtype, torch.float32)
        terms = torch.linalg.vector_norm(terms, 1, dims and tuple(dims), dtype=wide)
    return float(terms.abs().max())


_TOTALS: Mapping[Any, Callable[..., dict[int, float]]] = {
    _aten.sum.default: _sum,
    _aten.sum.dim_IntList: _sum,
    _aten.native_layer_norm_backward.default: _layer_norm,
    _aten.embedding_dense_backward.default: _embedding,
}
