"""RMS norm that is spelled out becomes one op forward and one backward."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import fx

from ....ir.program import Program
from ....ir.rewriter import Rewriter
from ....library.definition import has_kernel
from ...base import Pass
from ...pattern import CallPattern, Match, Wanted, call, match, plain_sum
from ..search import NotFused, fuse_each
from .op import add_rms_norm, add_rms_norm_backward

aten = torch.ops.aten
_DTYPES = (torch.float32, torch.float64)


@dataclass
class _Norm:
    """An RMS norm and its backward, as `torch.nn.functional.rms_norm` and Llama write it."""

    values: fx.Node
    """The normalized values."""
    rstd: fx.Node
    normal: fx.Node
    """``values * rstd``."""
    out: fx.Node
    weight: fx.Node
    eps: float
    grad_out: fx.Node | None = None
    grad_sum: fx.Node | None = None
    """The gradient that the norm's is added to."""
    gradient: fx.Node | None = None
    """The gradient by ``values``; None without a backward."""
    of_weight: fx.Node | None = None
    nodes: list[fx.Node] = field(default_factory=list)
    """All nodes of the norm, in program order."""

    def take(self, nodes: Sequence[fx.Node]) -> None:
        self.nodes = sorted({*self.nodes, *nodes})


@dataclass(frozen=True)
class FuseRmsNorm(Pass):
    """``values * rsqrt(mean(values ** 2) + eps) * weight`` becomes ``torchgraph::add_rms_norm``.

    With the residual addition before it, and with its backward, to which another gradient is added.
    For float32 and float64 on the CPU, where ATen has no kernel for it. Not exact: sums are taken
    in another order.
    """

    name: ClassVar[str] = "fuse_rms_norm"

    def exact(self, program: Program) -> bool:
        """Never."""
        return False

    def apply(self, program: Program, edit: Rewriter) -> None:
        """Fuse the RMS norm around each reciprocal square root."""
        fuse_each(program, _norm, _fuse, edit)


# --- finding it -----------------------------------------------------------------------------------


def _norm(rstd: fx.Node) -> _Norm | None:
    """The norm around a reciprocal root; None for any other node. Raises `NotFused`."""
    if rstd.target is not aten.rsqrt.default:
        return None
    square = call(aten.pow, Wanted("values"), 2)
    variance = call(aten.mean, square, [Wanted("dim")], True)
    found = Match()
    if not match(call(aten.rsqrt, call(aten.add, variance, Wanted("eps"))), rstd, found):
        return None
    values, eps = found.values["values"], found.values["eps"]
    if found.values["dim"] not in (-1, values.meta["val"].dim() - 1) or type(eps) is not float:
        return None
    for normal, out, weight in _products(values, rstd):
        norm = _Norm(values, rstd, normal, out, weight, eps)
        norm.take([*found.nodes, normal, out])
        _check(norm)
        if set(rstd.users) != {normal}:
            _take_backward(norm)
        for node in {*norm.nodes} - {out, norm.gradient, norm.of_weight}:
            if not {*norm.nodes}.issuperset(node.users):
                raise NotFused("something else reads a part of the norm")
        return norm
    return None


def _products(values: fx.Node, rstd: fx.Node) -> Iterator[tuple[fx.Node, fx.Node, fx.Node]]:
    """(values * rstd, that * weight, weight)."""
    shape = values.meta["val"].shape
    for normal in rstd.users:
        if normal.target is aten.mul.Tensor and normal.args == (values, rstd):
            for out in normal.users:
                factors = out.args
                if out.target is aten.mul.Tensor and normal in factors:
                    weight = factors[1] if factors[0] is normal else factors[0]
                    if isinstance(weight, fx.Node) and weight.meta["val"].shape == shape[-1:]:
                        yield normal, out, weight


def _check(norm: _Norm) -> None:
    value, weight = norm.values.meta["val"], norm.weight.meta["val"]
    if value.device.type != "cpu" or value.dtype not in _DTYPES or weight.dtype != value.dtype:
        raise NotFused("only float32 and float64 on the CPU were measured to gain")
    if not value.is_contiguous():
        raise NotFused("what is normalized is not contiguous")
    if not has_kernel(add_rms_norm, value.device):
        raise NotFused("no kernel of add_rms_norm is compiled for cpu")


def _take_backward(norm: _Norm) -> None:
    """Add the gradients to the norm."""
    found = Match()
    slope, along = _gradient_parts(norm, found)
    total = _only_sum(along)
    rest = None if total is None else _other(total, along)
    if total is None or rest is None:
        raise NotFused("the parts of its gradient are not added up")
    if rest is not slope:  # another gradient came first: (other + slope) + along
        if rest is not _only_sum(slope):
            raise NotFused("the parts of its gradient are not added up")
        norm.grad_sum = _other(rest, slope)
        norm.take([rest])
    norm.gradient, norm.grad_out = total, found.values["grad"]
    norm.take([*found.nodes, total])
    for shaped in _readers(norm.normal, 3):
        by_weight = Match()
        if match(_by_weight(norm), shaped, by_weight):
            norm.of_weight = shaped
            norm.take(by_weight.nodes)
            if any(user < total for user in shaped.users):
                raise NotFused("the gradient by the weight is read before that by the values")


def _gradient_parts(norm: _Norm, found: Match) -> tuple[fx.Node, fx.Node]:
    """The gradient by ``values`` through the product, and through their mean square."""
    for along in _readers(norm.values, 3):
        if match(_along(norm), along, found):
            weighted = found.values["weighted"]
            for slope in norm.rstd.users:
                product = call(aten.mul, weighted, norm.rstd)
                if match(product, slope, found) and match(_weighted(norm), weighted, found):
                    return slope, along
    raise NotFused("its gradient is computed in another way")


def _readers(node: fx.Node, steps: int) -> Iterator[fx.Node]:
    """The nodes that are ``steps`` calls further on."""
    for user in list(node.users):
        if steps == 1:
            yield user
        else:
            yield from _readers(user, steps - 1)


def _weighted(norm: _Norm) -> CallPattern:
    return call(aten.mul, Wanted("grad"), norm.weight)


def _along(norm: _Norm) -> CallPattern:
    """The gradient through the mean square."""
    shape = norm.values.meta["val"].shape
    dot = call(aten.sum, call(aten.mul, Wanted("weighted"), norm.values), [len(shape) - 1], True)
    half = call(aten.mul, call(aten.mul, dot, -0.5), call(aten.pow, norm.rstd, 3))
    share = call(aten.div, call(aten.expand, half, list(shape)), shape[-1])
    return call(aten.mul, share, call(aten.mul, call(aten.pow, norm.values, 1.0), 2.0))


def _by_weight(norm: _Norm) -> CallPattern:
    shape = norm.values.meta["val"].shape
    product = call(aten.mul, norm.grad_out, norm.normal)
    return call(aten.view, call(aten.sum, product, list(range(len(shape) - 1)), True), [shape[-1]])


def _only_sum(part: fx.Node) -> fx.Node | None:
    """The addition that alone reads ``part``."""
    readers = list(part.users)
    return readers[0] if len(readers) == 1 and plain_sum(readers[0]) else None


def _other(total: fx.Node, addend: fx.Node) -> fx.Node | None:
    """The other addend of a sum with ``addend``; None when ``addend`` is not among the two."""
    first, second = total.args[:2]
    found = second if first is addend else first if second is addend else None
    return found if isinstance(found, fx.Node) else None


# --- putting the ops ------------------------------------------------------------------------------


def _fuse(norm: _Norm, edit: Rewriter) -> None:
    addends = plain_sum(norm.values) if norm.weight < norm.values else None
    x, residual = addends or (norm.values, None)
    first = norm.values if addends else norm.nodes[0]

    def part(of: fx.Node, place: int, before: fx.Node) -> fx.Node:
        return edit.call(operator.getitem, (of, place), before=before, like=of)

    new = edit.call(add_rms_norm, (x, residual, norm.weight, norm.eps), before=first, like=norm.out)
    if norm.gradient is not None:
        last, rstd = norm.gradient, part(new, 2, first)
        sources = (norm.grad_out, norm.grad_sum, norm.values, rstd, norm.weight)
        back = edit.call(add_rms_norm_backward, sources, before=last, like=last)
        if norm.of_weight is not None:
            edit.replace(norm.of_weight, part(back, 1, last))
        edit.replace(last, part(back, 0, last))
    edit.replace(norm.out, part(new, 1, first))
    for node in reversed(norm.nodes):
        if node not in (norm.out, norm.gradient, norm.of_weight):
            edit.erase(node)
    if addends:
        edit.replace(norm.values, part(new, 0, first))
