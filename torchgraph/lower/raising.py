"""Calls that raise by the values that they are given: an index, a label, a matrix without inverse.

Whether they raise no shape tells. A program that has such a call may end there, and eager has to be
able to run that step from its start: lowering has what was written before copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol, TypeGuard

import torch
from torch import fx

from .._torch import OpOverload, overload_name, schema_of
from ..ir import effects
from ..ir.aliasing import alias_sources
from ..ir.program import Program
from ..ir.values import tensors_of

RAISES = "raises"
"""Key in ``node.meta`` of a call that other values of the same shapes may end."""

_INDEXING = {
    **dict.fromkeys(("aten::gather", "aten::scatter", "aten::scatter_add"), (0, 1, 2)),
    **dict.fromkeys(("aten::index_select", "aten::index_add"), (0, 1, 2)),
    **dict.fromkeys(("aten::index_copy", "aten::index_fill"), (0, 1, 2)),
    **dict.fromkeys(("aten::scatter_reduce", "aten::index_reduce"), (0, 1, 2)),
}
"""Ops with an index into one dimension: where they have the tensor, the dimension, the index."""
_BY_LISTS = frozenset({"aten::index", "aten::index_put"})
_CHECKING = frozenset(
    {
        *("torchgraph::cross_entropy", "torchgraph::linear_cross_entropy"),
        *("aten::take", "aten::put"),
        *("aten::masked_scatter", "aten::max_unpool2d", "aten::max_unpool3d"),
        *("aten::_embedding_bag", "aten::_embedding_bag_forward_only"),
        *("aten::multi_margin_loss", "aten::multilabel_margin_loss_forward"),
        *("aten::binary_cross_entropy", "aten::binomial", "aten::poisson"),
        *("aten::_assert_async", "aten::_pack_padded_sequence"),
    }
)
"""They check values on the CPU; on a GPU they do not, or end the process."""
_ANYWHERE = frozenset(
    {
        *("aten::_linalg_check_errors", "aten::_linalg_eigh", "aten::linalg_eig"),
        *("aten::linalg_eigvals", "aten::_linalg_eigvals", "aten::_linalg_svd"),
        *("aten::linalg_lstsq", "aten::cholesky", "aten::bincount", "aten::histc"),
        *("aten::multinomial", "aten::repeat_interleave", "aten::_ctc_loss"),
        *("aten::_assert_scalar", "aten::_functional_assert_async"),
    }
)
"""The host looks at their values, wherever these are."""
_DIVIDING = frozenset({"aten::div", "aten::floor_divide", "aten::fmod", "aten::remainder"})
"""They raise for integers that are divided by zero."""
_RANDOM = frozenset({"aten::bernoulli.default", "aten::normal.Tensor_Tensor"})
_RANDOM |= frozenset({"aten::normal.float_Tensor"})
_OF_POSITIONS = {"aten::topk": 2, "aten::sort": 1, "aten::argmax": 1, "aten::argmin": 1}
_OF_POSITIONS |= {"aten::max": 1, "aten::min": 1}
"""Ops that give positions in a dimension, and where they have it."""


class Calling(Protocol):
    """A target, no op of torch, that calls several ops."""

    def inner(self) -> Iterable[fx.Node]:
        """The nodes that a call of the target runs."""


def is_calling(target: object) -> TypeGuard[Calling]:
    """True for a target that calls several ops."""
    return hasattr(type(target), "inner")  # `runtime_checkable` takes ten times as long


class Index(NamedTuple):
    """An index that a call looks up, and what it may hold."""

    node: fx.Node
    low: int
    high: int
    """One more than the greatest."""
    ignored: int | None = None
    """A value that is allowed besides."""


def may_raise(node: fx.Node) -> bool:
    """True for a call that is marked as raising, or that makes such a call."""
    target: object = node.target
    if is_calling(target):
        return any(map(may_raise, target.inner()))
    return RAISES in node.meta


def mark(program: Program) -> None:
    """Mark the calls that may raise, except those whose index was checked before."""
    moves = set(program.placeholders)
    checked: set[Index] = set()
    for node in program.nodes:
        node.meta.pop(RAISES, None)
        body = getattr(node.target, "body", None)
        if isinstance(body, Program):
            mark(body)
        if node.op != "call_function" or moves.isdisjoint(node.all_input_nodes):
            continue
        moves.add(node)
        found = indices_of(node)
        if found is None:
            raises = _checks(node)
        else:
            free = [one._replace(node=_shown(one.node)) for one in found if one.node in moves]
            raises = any(one not in checked and not _is_bounded(one) for one in free)
            checked.update(free)
        if raises:
            node.meta[RAISES] = True


def keep_unread(program: Program) -> None:
    """Let calls stay that may raise although nothing reads what they give: ``try: table[i]``."""
    mark(program)
    read: set[fx.Node] = {program.output}
    for node in reversed(list(program.nodes)):
        if node in read or not effects.of(node).pure:
            read.update((node, *node.all_input_nodes))
    for node in program.nodes:
        if node not in read and may_raise(node):
            node.meta[effects.STAYS] = True


def indices_of(node: fx.Node) -> list[Index] | None:
    """The indices that a call looks up on the CPU; None for a call of another kind."""
    name = _name(node)
    if name in _INDEXING:
        table, dim, index = (node.args[i] for i in _INDEXING[name])
        return list(_index(index, table, dim))
    if name == "aten::embedding":
        return list(_index(node.args[1], node.args[0], 0))
    if name in ("aten::nll_loss_forward", "aten::nll_loss2d_forward"):
        ignored, scores = node.args[4], node.args[0]
        rows = isinstance(scores, fx.Node) and scores.meta["val"].ndim > 1
        found = _index(node.args[1], scores, int(rows))
        return [one._replace(ignored=ignored) for one in found if isinstance(ignored, int)]
    if name in _BY_LISTS:
        return list(_listed(node))
    return None


def _index(index: object, table: object, dim: object, *, wraps: bool = False) -> Iterator[Index]:
    """The index with its range; ``wraps``: negative ones count from the end."""
    if isinstance(index, fx.Node) and isinstance(table, fx.Node) and isinstance(dim, int):
        value, shape = index.meta.get("val"), table.meta["val"].shape
        on_cpu = isinstance(value, torch.Tensor) and value.device.type == "cpu"
        size = shape[dim] if shape else 1
        if on_cpu and type(size) is int:
            yield Index(index, -size if wraps else 0, size)


def _listed(node: fx.Node) -> Iterator[Index]:
    table, listed = node.args[:2]
    if not isinstance(listed, (list, tuple)) or not isinstance(table, fx.Node):
        return
    dim = 0
    for one in listed:
        value = one.meta.get("val") if isinstance(one, fx.Node) else None
        is_mask = isinstance(value, torch.Tensor) and value.dtype in (torch.bool, torch.uint8)
        if not is_mask:
            yield from _index(one, table, dim, wraps=True)
        dim += value.ndim if is_mask and isinstance(value, torch.Tensor) else 1


def _checks(node: fx.Node) -> bool:
    name = _name(node)
    if name in _ANYWHERE:
        return True
    if name in _DIVIDING:
        result = node.meta.get("val")
        exact = isinstance(result, torch.Tensor) and not result.dtype.is_floating_point
        raises = exact and isinstance(node.args[1], fx.Node)
    else:
        raises = name in _CHECKING or f"{name}.{_overload(node)}" in _RANDOM
    # Asked last: one result of an update of thousands has them all among its inputs.
    return raises and any(one.device.type == "cpu" for one in tensors_of(node.all_input_nodes))


def _shown(node: fx.Node) -> fx.Node:
    """The node behind copies and views that show all of its elements, perhaps repeated."""
    while True:
        name, source = _name(node), next(iter(node.all_input_nodes), None)
        whole = name in ("aten::clone", "aten::_to_copy") or (
            bool(alias_sources(node)) and name not in ("aten::slice", "aten::select")
        )
        if node.op != "call_function" or source is None or not whole:
            return node
        value, shown = node.meta.get("val"), source.meta.get("val")
        if not (isinstance(value, torch.Tensor) and isinstance(shown, torch.Tensor)):
            return node
        if value.numel() < shown.numel() or shown.dtype.is_floating_point:
            return node
        node = source


def _is_bounded(index: Index) -> bool:
    """True for indices that are positions in a dimension that is no longer."""
    node = index.node
    if _name(node) == "" and node.op == "call_function":  # one of several results
        node = next(iter(node.all_input_nodes), node)
    name = _name(node)
    if name not in _OF_POSITIONS or not isinstance(source := node.args[0], fx.Node):
        return False
    at = _OF_POSITIONS[name]
    usual = None if "arg" in name else -1
    dim: Any = node.args[at] if len(node.args) > at else node.kwargs.get("dim", usual)
    shape = source.meta["val"].shape
    size = shape.numel() if dim is None else shape[dim] if shape else 1
    return type(size) is int and size <= index.high


def _name(node: fx.Node) -> str:
    target: object = node.target
    return schema_of(target).name.removesuffix("_") if isinstance(target, OpOverload) else ""


def _overload(node: fx.Node) -> str:
    return overload_name(node.target) if isinstance(node.target, OpOverload) else ""
