"""Addition into a product: ``add(mm(a, b), c)`` becomes ``addmm(c, a, b)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import fx
from torch.fx.node import Target

from ....ir.aliasing import alias_sources
from ....ir.nodes import operand
from ....ir.program import Phase, Program, provenance
from ....ir.rewriter import Rewriter
from ...base import Pass

aten = torch.ops.aten

_ACCUMULATING: dict[Target, Target] = {
    aten.mm.default: aten.addmm.default,
    aten.bmm.default: aten.baddbmm.default,
}
_VIEWS = frozenset({aten.view.default, aten._unsafe_view.default})


class _Product(NamedTuple):
    call: fx.Node
    """``mm``, ``bmm``, or one that accumulates already."""
    addend: fx.Node
    """The node that the addition reads: the call, or a view of it."""


@dataclass(frozen=True)
class FuseAddToOutput(Pass):
    """Lets a matrix product accumulate onto the other addend, which costs no pass over memory.

    ``mm`` and ``bmm``, directly or through a view, as linear layers have it on inputs of more than
    two dimensions; both addends of one shape, dtype and device, in either order. What the optimizer
    adds stays. Lowering writes into the other addend where nothing reads that afterwards. Not
    exact: the product is not rounded before the addend is added. OneFlow: FuseAddToOutputPass.
    """

    name: ClassVar[str] = "fuse_add_to_output"

    def exact(self, program: Program) -> bool:
        """Never: the kernel adds before it rounds."""
        return False

    def apply(self, program: Program, edit: Rewriter) -> None:
        """Fuse additions in program order, so that each of a chain of additions fuses in turn."""
        for node in list(program.nodes):
            if node.target is not aten.add.Tensor or not all(map(_is_tensor, node.args[:2])):
                continue
            if provenance(node).phase is Phase.UPDATE:
                continue
            products = [found for found in map(_product, node.args[:2]) if found is not None]
            # The later one: what the fused call takes is there at its place.
            for product in sorted(products, key=lambda found: found.call, reverse=True):
                other = _other(node, product.addend)
                reason = _reason_against(node, product, other)
                if not reason:
                    _fuse(node, product, other, edit)
                    break
                edit.refuse(node, reason)


def _is_tensor(addend: object) -> bool:
    return isinstance(addend, fx.Node) and isinstance(addend.meta["val"], torch.Tensor)


def _product(addend: object) -> _Product | None:
    if not isinstance(addend, fx.Node):
        return None
    call = operand(addend) if addend.target in _VIEWS else addend
    known = call.target in _ACCUMULATING or call.target in _ACCUMULATING.values()
    return _Product(call, addend) if known else None


def _other(node: fx.Node, addend: fx.Node) -> fx.Node:
    return operand(node, 1 if node.args[0] is addend else 0)


def _reason_against(node: fx.Node, product: _Product, other: fx.Node) -> str:
    call, addend = product
    if node.kwargs.get("alpha", 1) != 1:
        return "the addition scales one of its addends"
    if other is addend:
        return "the product is added to itself"
    if len(addend.users) > 1 or len(call.users) > 1:
        return "something else reads the product"
    if call.target not in _ACCUMULATING:
        return "the product adds something already, and ATen has none with two addends"
    return _reason_in_values(node, product, other) or _reason_in_order(node, call, other)


def _reason_in_values(node: fx.Node, product: _Product, other: fx.Node) -> str:
    total, value, added = (each.meta["val"] for each in (node, product.addend, other))
    if any(type(size) is not int for size in (*value.shape, *added.shape)):
        return "a shape is symbolic"
    if value.shape != added.shape:
        return "the addends differ in shape"
    if (value.dtype, value.device) != (added.dtype, added.device):
        return "the addends differ in dtype or device"
    reshaped = product.addend is not product.call
    if not total.is_contiguous() or (reshaped and not added.is_contiguous()):
        return "the other addend is laid out differently"
    return ""


def _reason_in_order(node: fx.Node, call: fx.Node, other: fx.Node) -> str:
    """The reason not to delay a product until its later addend: its factors would stay alive."""
    if other < call:
        return ""
    kept = sum(_nbytes(root) for root in {*map(_root, call.all_input_nodes)} if _dies(root, node))
    if kept > _nbytes(call):
        return "the other addend comes later; until then the factors would take more memory"
    return ""


def _root(node: fx.Node) -> fx.Node:
    """The node whose memory a view shows."""
    while sources := alias_sources(node):
        node = sources[0]
    return node


def _dies(root: fx.Node, at: fx.Node) -> bool:
    """True when nothing from ``at`` on reads memory that ``root`` allocates."""
    if root.op != "call_function":
        return False
    waiting, seen = [root], {root}
    while waiting:
        for user in waiting.pop().users:
            if user >= at:
                return False
            if user not in seen and alias_sources(user):
                seen.add(user)
                waiting.append(user)
    return True


def _nbytes(node: fx.Node) -> int:
    value = node.meta["val"]
    return value.nbytes if isinstance(value, torch.Tensor) else 0


def _fuse(node: fx.Node, product: _Product, other: fx.Node, edit: Rewriter) -> None:
    call, addend = product
    place = call if other < call else node
    shape = list(call.meta["val"].shape)
    with edit.together():
        onto = _shaped(other, shape, node, place, edit)
        target = _ACCUMULATING[call.target]
        new = edit.call(target, (onto, *call.args), before=place, like=call)
        if addend is not call:
            new = _as_sum(new, node, place, edit)
        edit.replace(node, new)
        for unread in dict.fromkeys((addend, call, other)):
            if unread.op == "call_function" and not unread.users:
                edit.erase(unread)


def _as_sum(new: fx.Node, node: fx.Node, place: fx.Node, edit: Rewriter) -> fx.Node:
    """The fused product in the shape of the sum; who wants it as a matrix reads it directly."""
    shape = new.meta["val"].shape
    for user in list(node.users):
        if user.target in _VIEWS and user.meta["val"].shape == shape:
            edit.replace(user, new)
    if not node.users:
        return new
    sizes = list(node.meta["val"].shape)
    return edit.call(aten.view.default, (new, sizes), before=place, like=node)


def _shaped(
    other: fx.Node, shape: list[int], node: fx.Node, place: fx.Node, edit: Rewriter
) -> fx.Node:
    """``other`` in the shape of the product; what it is a view of, where that has the shape."""
    if list(other.meta["val"].shape) == shape:
        return other
    base = other.args[0] if other.target in _VIEWS else None
    if isinstance(base, fx.Node) and list(base.meta["val"].shape) == shape:
        return base
    return edit.call(aten.view.default, (other, shape), before=place, like=node)
