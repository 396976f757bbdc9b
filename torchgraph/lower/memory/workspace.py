"""Workspaces: what kernels take for themselves while they run, found by running them once.

A convolution may lay its arguments out anew, in memory as large as they are. No schema tells, so
each op is run on zeros of its arguments' layout, once in a process for each layout.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from ..._torch import OpOverload, below_autograd
from ...ir import effects
from ...ir.program import Program, TensorMeta
from ...ir.values import leaves, tensors_of
from ..inplace.each_in_place import EachInPlace
from .allocations import real, taken

_LEAST_BYTES = 65536
"""An op with no argument and no result as large as this has no workspace that matters."""

_known: dict[Hashable, int] = {}


def workspaces(program: Program) -> Mapping[fx.Node, int]:
    """node -> the bytes that its kernel takes besides its results; without those that take none.

    Elementwise ops take none, and random draws are not tried. Nothing is known while another
    profiler runs.
    """
    keys = {node: _key(node) for node in program.nodes if _may_take(node)}
    missing = {key: node for node, key in keys.items() if key not in _known}
    if missing:
        try:
            with torch.no_grad(), below_autograd():
                found = taken(map(_call, missing.values()))  # one after the other
        except RuntimeError:
            return {}
        _known.update((key, one.peak - one.end) for key, one in zip(missing, found, strict=True))
    rows = [node for node in program.nodes if isinstance(node.target, EachInPlace)]
    own = {node: node.target.peak for node in rows}  # type: ignore[union-attr]  # those
    return own | {node: _known[key] for node, key in keys.items() if _known[key] > 0}


def _may_take(node: fx.Node) -> bool:
    op = node.target
    if node.op != "call_function" or not isinstance(op, OpOverload) or op.namespace != "aten":
        return False
    if torch.Tag.pointwise in op.tags or op.is_view or not _is_safe(node):
        return False
    tensors = list(tensors_of([node, *node.all_input_nodes]))
    sizes = [tensor.numel() * tensor.itemsize for tensor in tensors]
    on_cpu = all(tensor.device.type == "cpu" for tensor in tensors)
    known = all(type(size) is int for size in sizes)
    return on_cpu and known and max(sizes, default=0) >= _LEAST_BYTES


def _is_safe(node: fx.Node) -> bool:
    """True for an op that can run once more unnoticed: it draws nothing, prints nothing."""
    return not effects.of(node).ordered


def _call(node: fx.Node) -> Callable[[], object]:
    args = fx.map_arg(node.args, _sample)
    kwargs = fx.map_arg(node.kwargs, _sample)
    assert callable(node.target)
    return partial(_run, node.target, args, kwargs)


def _run(op: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    try:
        return op(*args, **kwargs)
    except RuntimeError:  # zeros are not for every op: no inverse, for one
        return None


def _sample(node: fx.Node) -> Any:
    value = node.meta["val"]
    return [real(v) for v in value] if isinstance(value, (list, tuple)) else real(value)


def _key(node: fx.Node) -> Hashable:
    def described(argument: object) -> Hashable:
        if isinstance(argument, fx.Node):
            values = leaves(argument.meta["val"])
            return tuple(TensorMeta.of(v) if isinstance(v, torch.Tensor) else 0 for v in values)
        if isinstance(argument, (list, tuple)):
            return tuple(map(described, argument))
        return repr(argument)

    kwargs = tuple((key, described(value)) for key, value in node.kwargs.items())
    return (node.target, described(node.args), kwargs, torch.get_num_threads())
