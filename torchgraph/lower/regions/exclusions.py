"""Ops that compiled code does not know, or computes otherwise than by rounding.

Regions leave them to ATen. A value's strides do not tell in which order compiled code goes through
it: the layout of an intermediate is the compiler's choice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import fx

from ..._torch import OpOverload, schema_of
from ..._torch.inductor import flat_indices_are_wrong
from ...ir.nodes import operand
from ...ir.values import tensors_of


class Exclusion(NamedTuple):
    """Ops that stay outside of regions."""

    ops: frozenset[str]
    why: str
    applies: Callable[[fx.Node], bool] = lambda node: True
    """True for a call that stays outside."""


def exclusion(node: fx.Node) -> Exclusion | None:
    """The reason for which ``node`` stays outside of regions; None for one that may be inside."""
    name = schema_of(node.target).name if isinstance(node.target, OpOverload) else ""
    found = (one for one in EXCLUSIONS if name in one.ops and one.applies(node))
    return next(found, None)


def _of_all_elements(node: fx.Node) -> bool:
    """True where the place is one among the elements of several dimensions."""
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    return flat_indices_are_wrong() and dim is None and operand(node).meta["val"].ndim > 1


def _of_transposed_image(node: fx.Node) -> bool:
    """True where the rows of an image, or of a volume, are not one after the other in memory."""
    dims = 3 if "3d" in str(node.target) else 2
    strides = operand(node).meta["val"].stride()[-dims:]
    return list(strides) != sorted(strides, reverse=True)


def _rounds_down_floats(node: fx.Node) -> bool:
    down = node.kwargs.get("rounding_mode") == "floor" or "floor_divide" in str(node.target)
    values = list(tensors_of(node.meta["val"]))
    return down and all(value.is_floating_point() for value in values)


def _of_rounded_number(node: fx.Node) -> bool:
    halves = operand(node).meta["val"].dtype in (torch.float16, torch.bfloat16)
    return halves and any(not list(tensors_of(argument)) for argument in node.args)


def _may_scale_by_zero(node: fx.Node) -> bool:
    """True for a sum with a product of which one may be multiplied by 0: ATen does not read it."""
    scales = [node.kwargs.get(name, 1) for name in ("alpha", "beta")]
    return any(isinstance(scale, fx.Node) or scale == 0 for scale in scales)


def _of_bytes(node: fx.Node) -> bool:
    return operand(node).meta["val"].dtype in (torch.int8, torch.uint8)


def _aten(*names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names)


EXCLUSIONS = (
    Exclusion(
        _aten("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward")
        | {"torchgraph::rnn_layer_without_grad"},
        "without grad mode, as compiled code runs, oneDNN's LSTM keeps nothing for its backward",
    ),
    Exclusion(
        _aten("_cudnn_rnn", "_cudnn_rnn_backward", "miopen_rnn", "miopen_rnn_backward"),
        "the compiler goes by fake kernels, which do not know the size of what is kept",
    ),
    Exclusion(
        frozenset({"torchgraph::differs"}), "a pause looks for its node to say what has moved"
    ),
    Exclusion(
        _aten("argmax", "argmin"),
        "counts in the order of memory (pytorch#193751)",
        _of_all_elements,
    ),
    Exclusion(
        _aten("max_pool2d_with_indices", "adaptive_max_pool2d", "fractional_max_pool2d")
        | _aten("max_pool3d_with_indices", "adaptive_max_pool3d", "fractional_max_pool3d"),
        "places within a window count in the order of memory (pytorch#197434)",
        _of_transposed_image,
    ),
    Exclusion(_aten("softshrink"), "a NaN becomes 0"),
    Exclusion(
        _aten("floor_divide", "div"),
        "rounds the quotient before it rounds down: 1.0 // 0.1 is 9, not 10 (pytorch#197895)",
        _rounds_down_floats,
    ),
    Exclusion(
        _aten("fmod", "remainder"),
        "ATen rounds the divisor to the tensor's dtype, which moves the place where the remainder"
        " jumps (pytorch#186875)",
        _of_rounded_number,
    ),
    Exclusion(
        _aten("addmm", "addmv", "addbmm", "baddbmm", "addr"),
        "multiplies by 0 what ATen leaves out: a NaN stays one (pytorch#196596)",
        _may_scale_by_zero,
    ),
    Exclusion(
        _aten("amax", "amin", "argmax", "argmin", "max", "min", "aminmax"),
        "reads parts of vectors that no byte was loaded into (pytorch#191543)",
        _of_bytes,
    ),
)
