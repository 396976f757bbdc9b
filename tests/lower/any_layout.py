"""Regions interpreted with every value laid out otherwise than in eager, as compilers may do."""

import random
from typing import Any

import torch
from torch import fx

from torchgraph._torch import OpOverload
from torchgraph.ir.aliasing import alias_sources
from torchgraph.lower.inplace.layouts import takes_any_layout

aten = torch.ops.aten

_LEFT_ALONE = frozenset({aten.reshape.default, aten.contiguous.default, aten.copy_.default})
"""Views, what makes a layout because the next op asks for it, and what writes a state."""


class AnyLayout(fx.Interpreter):
    """Runs a region's graph; what an op makes is moved to memory in another order of its dims."""

    def run_node(self, n: fx.Node) -> Any:
        """As fx does."""
        value = super().run_node(n)
        if n.op != "call_function" or n.target in _LEFT_ALONE or alias_sources(n):
            return value
        return fx.node.map_aggregate(value, _moved)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """As fx does."""
        if self._has_a_kernel_of_its_own(target):
            args, kwargs = fx.node.map_aggregate((args, kwargs), _contiguous)
        return super().call_function(target, args, kwargs)

    @staticmethod
    def _has_a_kernel_of_its_own(target: Any) -> bool:
        """True for what compilers do not call ATen for, whose kernel may want contiguous inputs."""
        if not isinstance(target, OpOverload) or target in _LEFT_ALONE:
            return False
        node = fx.Graph().call_function(target)
        if torch.Tag.pointwise in target.tags or _views(node):
            return False
        return takes_any_layout(node)


def _views(node: fx.Node) -> bool:
    return any(argument.alias_info for argument in node.target._schema.arguments)


def _contiguous(value: Any) -> Any:
    return value.contiguous() if isinstance(value, torch.Tensor) else value


def _moved(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dim() < 2:
        return value
    order = random.sample(range(value.dim()), value.dim())
    back = [order.index(dim) for dim in range(value.dim())]
    return value.permute(order).clone(memory_format=torch.contiguous_format).permute(back)
