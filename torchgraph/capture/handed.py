"""Devices of results that only the op's own backward reads: those of the op.

An attention on a GPU draws by a seed and an offset. It gives them on the CPU, and on the GPU where
a CUDA Graph is captured; its backward takes either, and nobody else looks at them. A recording has
met them on the CPU, where nothing of a CUDA Graph may wait for them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from .._torch import FakeTensorMode, OpOverload, schema_of
from ..ir import values
from ..ir.nodes import item
from ..ir.program import Program

aten = torch.ops.aten
_SAME = frozenset({aten.alias.default, aten.clone.default, aten.detach.default})
"""Copies that a checkpoint makes of such a result, where it computes again."""


def move_handed(program: Program) -> None:
    """Move results that were recorded on another device to the one of the op's fake kernel."""
    mode = values.mode_of(program)
    for node in program.nodes:
        elsewhere = list(_on_the_cpu(node))
        if not elsewhere:
            continue
        with values.neutral():
            given = values.with_values((node.args, node.kwargs))
            computed = values.evaluate(mode, node.target, *given)
        for place in elsewhere:
            parts = [user for user in node.users if item(user) == place]
            if computed[place].device.type != "cpu" and all(_ends_in(p, node) for p in parts):
                found = [*node.meta["val"]]
                found[place] = computed[place]
                node.meta["val"] = type(node.meta["val"])(found)
                for part in parts:
                    _place(part, computed[place], mode)


def _on_the_cpu(node: fx.Node) -> Iterator[int]:
    """The results on the CPU of a call that is given tensors of another device alone."""
    results = node.meta.get("val")
    if not isinstance(node.target, OpOverload) or not isinstance(results, (list, tuple)):
        return
    given = {tensor.device.type for tensor in values.tensors_of((node.args, node.kwargs))}
    if not given or "cpu" in given:
        return
    for place, result in enumerate(results):
        if isinstance(result, torch.Tensor) and result.device.type == "cpu":
            yield place


def _ends_in(value: fx.Node, op: fx.Node) -> bool:
    """True where nothing but the backward of ``op`` looks at ``value``."""
    return all(
        _ends_in(user, op) if user.target in _SAME else _is_backward(user.target, op.target)
        for user in value.users
    )


def _is_backward(target: object, forward: object) -> bool:
    assert isinstance(forward, OpOverload)
    name = schema_of(forward).name.removesuffix("_forward")
    return isinstance(target, OpOverload) and schema_of(target).name == f"{name}_backward"


def _place(value: fx.Node, fake: torch.Tensor, mode: FakeTensorMode) -> None:
    value.meta["val"] = fake
    for user in value.users:
        if user.target in _SAME:
            with values.neutral():
                _place(user, values.evaluate(mode, user.target, (fake,), {}), mode)
