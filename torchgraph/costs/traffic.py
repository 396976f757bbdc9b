"""The sizes of what ops take and give."""

from __future__ import annotations

import math

import torch
from torch import fx

from ..ir.values import tensors_of


def shape_of(value: object) -> tuple[int, ...]:
    """Sizes; 1 for one that depends on data. Empty for what is no tensor."""
    value = value.meta.get("val") if isinstance(value, fx.Node) else value
    if not isinstance(value, torch.Tensor):
        return ()
    return tuple(size if type(size) is int else 1 for size in value.shape)


def elements(value: object) -> int:
    """Elements of all tensors in a value; a node stands for its own."""
    return sum(math.prod(shape_of(tensor)) for tensor in tensors_of(value))


def traffic(node: fx.Node) -> int:
    """Bytes of all tensors that go in and come out."""
    values = (node, *node.args, *node.kwargs.values())
    found = (tensor for value in values for tensor in tensors_of(value))
    return sum(math.prod(shape_of(tensor)) * tensor.dtype.itemsize for tensor in found)
