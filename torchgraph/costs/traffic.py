"""The sizes of the tensors that ops read and write."""

from __future__ import annotations

import math

import torch
from torch import fx

from ..ir.values import tensors_of

aten = torch.ops.aten

_EMPTY = frozenset({aten.empty_like, aten.new_empty, aten.new_empty_strided, aten.empty})
SHAPES = frozenset(
    {
        *(aten.zeros_like, aten.ones_like, aten.empty_like, aten.full_like, aten.new_empty),
        *(aten.new_zeros, aten.new_ones, aten.new_full, aten.rand_like, aten.randn_like),
        *(aten.randint_like, aten.new_empty_strided),
    }
)
"""They read the shape of their first argument."""
_FILLED = frozenset(
    {
        *(aten.fill, aten.zero, aten.copy, aten.uniform, aten.random, aten.exponential),
        *(aten.fill_, aten.zero_, aten.copy_, aten.uniform_, aten.random_, aten.exponential_),
        *(aten.normal_functional, aten.normal_, aten.bernoulli_),
    }
)
"""They write all of their first argument, and read none of it."""


def shape_of(value: object) -> tuple[int, ...]:
    """Sizes; 1 for one that depends on data. Empty for what is no tensor."""
    value = value.meta.get("val") if isinstance(value, fx.Node) else value
    if not isinstance(value, torch.Tensor):
        return ()
    return tuple(size if type(size) is int else 1 for size in value.shape)


def elements(value: object) -> int:
    """Elements of all tensors in a value; a node stands for its own."""
    return sum(math.prod(shape_of(tensor)) for tensor in tensors_of(value))


def nbytes(value: torch.Tensor) -> int:
    """Bytes of a tensor; a size that depends on data counts as 1."""
    return math.prod(shape_of(value)) * value.dtype.itemsize


def traffic(node: fx.Node) -> int:
    """Bytes of all tensors that are read and written.

    Of an argument that gives its shape alone, and of one that is filled, nothing is read; what is
    left empty is not written.
    """
    packet = getattr(node.target, "overloadpacket", None)
    given = (*node.args, *node.kwargs.values())
    if packet in SHAPES or packet in _FILLED or node.target is aten.bernoulli.p:
        given = given[1:]
    values = given if packet in _EMPTY else (node, *given)
    found = (tensor for value in values for tensor in tensors_of(value))
    return sum(map(nbytes, found))
