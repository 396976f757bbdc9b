"""A cast from half precision and its multiplication by a scale: one op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeGuard

import torch
from torch import fx
from torch.fx.node import Argument

from ....ir.nodes import operand
from ....ir.program import Program
from ....ir.rewriter import Rewriter
from ....ir.values import same_layout
from ....library.definition import has_kernel
from ...base import Pass
from .op import cast_scale

aten = torch.ops.aten

_HALF = frozenset({torch.float16, torch.bfloat16})


class _Chain(NamedTuple):
    cast: fx.Node
    number: float
    """The first factor of the cast; 1.0 for none."""
    between: fx.Node | None
    """The node that does so."""
    scale_by: fx.Node


@dataclass(frozen=True)
class FuseCastScale(Pass):
    """``mul(mul(_to_copy(x, float32), number), scale)`` becomes ``torchgraph::cast_scale``.

    ``x`` is half precision, ``scale`` a 0-dim tensor, the multiplication by a number optional: how
    gradients are unscaled. Only where the op is compiled for the device: its reference takes as
    long as the separate ops. OneFlow: FuseCastScalePass, for CUDA alone.
    """

    name: ClassVar[str] = "fuse_cast_scale"
    least_size: int = 131_072
    """On the CPU, numbers from which on the op takes less time than a cast and one product."""

    def exact(self, program: Program) -> bool:
        """Always: the op multiplies in the same order and rounds as often."""
        return True

    def apply(self, program: Program, edit: Rewriter) -> None:
        """Fuse the cast before each multiplication by a 0-dim tensor."""
        for node in list(program.nodes):
            chain = _chain(node)
            if chain is None:
                continue
            reason = self._reason_against(node, chain)
            if reason:
                edit.refuse(node, reason)
            else:
                _fuse(node, chain, edit)

    def _reason_against(self, node: fx.Node, chain: _Chain) -> str:
        source = operand(chain.cast)
        x, scale, result = (each.meta["val"] for each in (source, chain.scale_by, node))
        if x.dtype not in _HALF or chain.cast.meta["val"].dtype is not torch.float32:
            return "the cast is not from half precision to float32"
        if set(chain.cast.kwargs) - {"dtype"}:
            return "the cast changes more than the dtype"
        if scale.dtype is not torch.float32 or scale.device != x.device:
            return "the scale is of another dtype or on another device"
        if not same_layout(result, chain.cast.meta["val"]):
            return "the product is laid out differently"
        if any(len(link.users) > 1 for link in (chain.cast, chain.between) if link is not None):
            return "something else reads the cast"
        if x.device.type == "cpu" and chain.between is None and x.numel() < self.least_size:
            return "a cast and one product of so few numbers are as fast as the op"
        if not has_kernel(cast_scale, x.device):
            return f"no kernel of cast_scale is compiled for {x.device.type}"
        return ""


def _chain(node: fx.Node) -> _Chain | None:
    """The cast and the factors that ``node`` multiplies; None when it is something else."""
    if node.target is not aten.mul.Tensor:
        return None
    first, second = node.args
    for product, scale_by in ((first, second), (second, first)):
        cast, number, between = _without_number(product)
        if _is_cast(cast) and _is_scalar(scale_by):
            return _Chain(cast, number, between, scale_by)
    return None


def _without_number(product: Argument) -> tuple[Argument, float, fx.Node | None]:
    """The other factor of a product by a literal, the literal, and the product; or 1.0 and None."""
    if isinstance(product, fx.Node) and product.target is aten.mul.Tensor:
        source, number = product.args
        if isinstance(number, (int, float)) and float(number) == number:
            return source, float(number), product
    return product, 1.0, None


def _is_cast(node: object) -> TypeGuard[fx.Node]:
    return isinstance(node, fx.Node) and node.target is aten._to_copy.default


def _is_scalar(node: object) -> TypeGuard[fx.Node]:
    value = node.meta["val"] if isinstance(node, fx.Node) else None
    return isinstance(value, torch.Tensor) and value.dim() == 0


def _fuse(node: fx.Node, chain: _Chain, edit: Rewriter) -> None:
    args = (chain.cast.args[0], chain.scale_by, chain.number)
    with edit.together():
        new = edit.call(cast_scale, args, {"dtype": torch.float32}, before=node, like=node)
        edit.replace(node, new)
        for dead in (chain.between, chain.cast):
            if dead is not None:
                edit.erase(dead)
