"""Random draws by a compiler's own generator, for ``config.set_rng("fast")``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx
from torch.fx.node import Argument, Target

from ..._torch import OpOverload
from ...library import draws

aten = torch.ops.aten

_Emit = Callable[..., fx.Node]


def has_rule(node: fx.Node) -> bool:
    """True for a draw that `rewritten` knows."""
    return node.target in _RULES and node.kwargs.get("generator") is None


def rewritten(graph: fx.Graph, node: fx.Node, args: tuple[Argument, ...]) -> fx.Node:
    """Rewrite a random op on uniform or normal draws, which compilers have kernels for."""

    def emit(op: OpOverload, *given: Argument, **options: Argument) -> fx.Node:
        made = graph.call_function(op, given, options)
        made.meta["val"] = node.meta["val"]
        return made

    return _RULES[node.target](emit, node.meta["val"], *args)


def _bernoulli(emit: _Emit, value: torch.Tensor, like: object, p: float) -> fx.Node:
    drawn = emit(aten.rand.default, list(value.shape), dtype=torch.float32, device=value.device)
    return emit(aten._to_copy.default, emit(aten.lt.Scalar, drawn, p), dtype=value.dtype)


def _normal(emit: _Emit, value: torch.Tensor, like: object, mean: float, std: float) -> fx.Node:
    drawn = emit(aten.randn.default, list(value.shape), dtype=value.dtype, device=value.device)
    return emit(aten.add.Tensor, emit(aten.mul.Tensor, drawn, std), mean)


def _same_op(op: OpOverload) -> Callable[..., fx.Node]:
    def rule(emit: _Emit, value: torch.Tensor, like: object) -> fx.Node:
        return emit(op, list(value.shape), dtype=value.dtype, device=value.device)

    return rule


_RULES: dict[Target, Callable[..., fx.Node]] = {
    aten.bernoulli.p: _bernoulli,
    draws.bernoulli: _bernoulli,
    draws.normal: _normal,
    aten.rand_like.default: _same_op(aten.rand.default),
    aten.randn_like.default: _same_op(aten.randn.default),
}
