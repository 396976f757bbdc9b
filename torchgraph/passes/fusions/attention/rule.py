"""Attention that is spelled out becomes one op: ``softmax(q @ k.mT * scale + mask) @ v``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import fx
from torch.fx.node import Argument, Target

from ....ir import effects
from ....ir.nodes import operand
from ....ir.program import Program
from ....ir.rewriter import Rewriter
from ...base import Pass
from ..search import NotFused, fuse_each

aten = torch.ops.aten

_RESHAPES = frozenset(
    {
        aten.view.default,
        aten._unsafe_view.default,
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.expand.default,
        aten.clone.default,
        aten.alias.default,
        aten.detach.default,
        aten.permute.default,
    }
)
_SCALES = frozenset({aten.mul.Tensor, aten.div.Tensor})


class _Attention(NamedTuple):
    """The nodes of one attention, and how its operands are split."""

    softmax: fx.Node
    scores: fx.Node
    """``bmm`` of queries and keys."""
    last: fx.Node
    """``bmm`` of probabilities and values."""
    masked: fx.Node
    """The result of the mask, if there is one; else the softmax's argument."""
    mask: fx.Node | None
    scale: float
    heads: tuple[int, int]
    """(batch, heads): their product is the first dimension of the ``bmm``."""


@dataclass(frozen=True)
class FuseAttention(Pass):
    """Replaces products, scale, mask and softmax by ``aten.scaled_dot_product_attention``.

    For programs without a backward: in one with, the gradients read the probabilities, which the
    fused op does not give. Not exact: sums are taken in another order, and a row whose every key
    is masked gives 0 instead of NaN. No option switches it on, but
    ``graph.config.passes.insert(FuseAttention())``. OneFlow: ONEFLOW_MLIR_FUSE_FORWARD_OPS.
    """

    name: ClassVar[str] = "fuse_attention"

    def exact(self, program: Program) -> bool:
        """Never."""
        return False

    def apply(self, program: Program, edit: Rewriter) -> None:
        """Fuse the attention around each softmax over the last dimension of a product."""
        fuse_each(program, _attention, _fuse, edit)


# --- finding it ----------------------------------------------------------------------------------


def _attention(softmax: fx.Node) -> _Attention | None:
    """The attention around a softmax; None for any other. Raises `NotFused`."""
    if softmax.target is not aten._softmax.default:
        return None
    _, dim, widens = softmax.args
    if dim not in (-1, softmax.meta["val"].dim() - 1) or widens:
        return None
    above = list(_reshaped_from(operand(softmax)))
    masked = above[-1]
    for below, mask in _unmasked(masked):
        chain = _down_to_product(below)
        if chain:
            if any(len(node.users) > 1 for node in (*above, *chain)):
                raise NotFused("something else reads the scores")
            last = _product_with_values(softmax)
            heads = _batch_and_heads(masked, softmax, chain[-1])
            found = _Attention(softmax, chain[-1], last, masked, mask, _scale(chain), heads)
            _check(found)
            return found
    return None


def _unmasked(masked: fx.Node) -> Iterator[tuple[Argument, fx.Node | None]]:
    """The possible pairs of what is masked and the mask."""
    if masked.target is aten.masked_fill.Scalar:
        yield masked.args[0], operand(masked, 1)
    elif masked.target is aten.add.Tensor:
        for one, other in (masked.args[:2], masked.args[1::-1]):
            if isinstance(other, fx.Node):
                yield one, other
    else:
        yield masked, None


def _down_to_product(node: Argument) -> list[fx.Node]:
    """From a node through scales and reshapes to the ``bmm`` behind it; empty if there is none."""
    found = []
    while isinstance(node, fx.Node):
        found.append(node)
        if node.target is aten.bmm.default:
            return found
        if node.target not in _SCALES and not _is_reshape(node):
            break
        node = node.args[0]
    return []


def _scale(chain: list[fx.Node]) -> float:
    scale = 1.0
    for node in chain:
        if node.target in _SCALES:
            number = node.args[1]
            if not isinstance(number, (int, float)) or not number:
                raise NotFused("the scale is no number of the program")
            scale = scale * number if node.target is aten.mul.Tensor else scale / number
    return scale


def _product_with_values(softmax: fx.Node) -> fx.Node:
    node = softmax
    while True:
        if len(node.users) != 1:
            raise NotFused("something else reads the probabilities: their gradient, when training")
        (user,) = node.users
        if user.target is aten.bmm.default and user.args[0] is node is not user.args[1]:
            return user
        if not _is_reshape(user):
            raise NotFused("the values are not multiplied by the probabilities themselves")
        node = user


def _batch_and_heads(masked: fx.Node, softmax: fx.Node, scores: fx.Node) -> tuple[int, int]:
    queries = operand(scores)
    rows = queries.meta["val"].shape[1:]
    shapes = [node.meta["val"].shape for node in (masked, softmax)]
    sources = (node.meta["val"].shape for node in _reshaped_from(queries))
    shapes += [shape for shape in sources if shape[2:] == rows]
    return next(((s[0], s[1]) for s in shapes if len(s) == 4), (queries.meta["val"].shape[0], 1))


def _check(found: _Attention) -> None:
    operands = (operand(found.scores), operand(found.last, 1))
    queries, values = (node.meta["val"] for node in operands)
    if any(type(size) is not int for size in found.softmax.meta["val"].shape):
        raise NotFused("a shape is symbolic")
    if queries.shape[2] != values.shape[2]:
        raise NotFused("queries and values differ in width")
    if queries.device.type == "cpu" and queries.dtype not in (torch.float32, torch.float64):
        raise NotFused("on the CPU the fused op is slower in half precision")
    if found.mask is not None:
        _check_mask(found, found.mask.meta["val"])


def _check_mask(found: _Attention, mask: torch.Tensor) -> None:
    fills = found.masked.target is aten.masked_fill.Scalar
    if fills and found.masked.args[2] != -math.inf:
        raise NotFused("the mask fills with another number than -inf")
    if found.masked.kwargs.get("alpha", 1) != 1:
        raise NotFused("the mask is scaled")
    if not fills and mask.dtype != found.softmax.meta["val"].dtype:
        raise NotFused("the mask is of another dtype than the scores")
    rank = found.masked.meta["val"].dim()
    if rank not in (3, 4) or not 2 <= mask.dim() <= rank:
        raise NotFused("the mask is of a rank that the fused op does not take")


def _is_reshape(node: fx.Node) -> bool:
    """True when the elements stay as they are and in their order."""
    if node.target not in _RESHAPES:
        return False
    source = operand(node)
    shape = source.meta["val"].shape
    if node.target is aten.permute.default:
        axes: Any = node.args[1]
        moved = [axis % len(shape) for axis in axes if shape[axis] != 1]
        return moved == sorted(moved)
    return bool(node.meta["val"].numel() == source.meta["val"].numel())


def _reshaped_from(node: fx.Node) -> Iterator[fx.Node]:
    """The node, what it is a reshape of, and so on."""
    yield node
    while _is_reshape(node):
        node = operand(node)
        yield node


# --- replacing it --------------------------------------------------------------------------------


def _fuse(found: _Attention, edit: Rewriter) -> None:
    queries, keys = (_split(operand(found.scores, place), found, edit) for place in (0, 1))
    operands = (
        queries,
        _new(found, edit, aten.transpose.int, keys, -2, -1),
        _split(operand(found.last, 1), found, edit),
    )
    options = {"attn_mask": _mask(found, edit), "scale": found.scale}
    new = _new(found, edit, aten.scaled_dot_product_attention.default, *operands, **options)
    _sweep(_give(found.last, new, edit), edit)


def _new(
    found: _Attention, edit: Rewriter, target: Target, *args: Argument, **kwargs: Argument
) -> fx.Node:
    return edit.call(target, args, kwargs, before=found.last, like=found.softmax)


def _split(whole: fx.Node, found: _Attention, edit: Rewriter) -> fx.Node:
    """The operand of a ``bmm`` with its first dimension as batch and heads.

    What it was made from where that has the shape already: a copy less.
    """
    shape = [*found.heads, *whole.meta["val"].shape[1:]]
    for source in reversed(list(_reshaped_from(whole))):
        if list(source.meta["val"].shape) == shape:
            return source
    return _new(found, edit, aten.view.default, whole, shape)


def _mask(found: _Attention, edit: Rewriter) -> fx.Node | None:
    """The mask in the shape and sense of the fused op: True, or a summand, where a key counts."""
    mask = found.mask
    if mask is None:
        return None
    if found.masked.target is aten.masked_fill.Scalar:
        mask = _new(found, edit, aten.logical_not.default, mask)
    sizes = list(mask.meta["val"].shape)
    if len(sizes) != 3:
        return mask
    if found.masked.meta["val"].dim() == 3 and sizes[0] != 1:
        return _new(found, edit, aten.view.default, mask, [*found.heads, *sizes[1:]])
    return _new(found, edit, aten.unsqueeze.default, mask, 0)


def _give(last: fx.Node, new: fx.Node, edit: Rewriter) -> list[fx.Node]:
    """Replace ``last`` by ``new`` in its layout; return the nodes that may be unread."""
    merged = _merged_heads(last, new)
    replaced = last if merged is None else merged
    if merged is not None:
        new = edit.call(aten.transpose.int, (new, 1, 2), before=merged, like=merged)
    if not new.meta["val"].is_contiguous():
        new = edit.call(aten.clone.default, (new,), _CONTIGUOUS, before=replaced, like=replaced)
    if merged is None:
        sizes = list(last.meta["val"].shape)
        new = edit.call(aten.view.default, (new, sizes), before=last, like=last)
    unread = replaced.all_input_nodes
    edit.replace(replaced, new)
    return unread


def _merged_heads(last: fx.Node, new: fx.Node) -> fx.Node | None:
    """``clone(transpose(view(last), 1, 2))``, with which models go on: the fused op's layout."""
    path = [last]
    while len(path) < 4 and len(path[-1].users) == 1:
        path.extend(path[-1].users)
    if len(path) < 4:
        return None
    _, split, swapped, copied = path
    fits = split.meta["val"].shape == new.meta["val"].shape and _is_reshape(split)
    swaps = swapped.target is aten.transpose.int and swapped.args[1:] == (1, 2)
    copies = copied.target is aten.clone.default and copied.meta["val"].is_contiguous()
    return copied if fits and swaps and copies else None


def _sweep(nodes: list[fx.Node], edit: Rewriter) -> None:
    """Erase nodes that nobody reads any more, and what only they read."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node.op == "call_function" and not node.users and effects.of(node).pure:
            waiting.extend(node.all_input_nodes)
            edit.erase(node)


_CONTIGUOUS = {"memory_format": torch.contiguous_format}
