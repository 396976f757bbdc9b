"""torch's fused optimizer kernels as ops of our own, for programs whose learning rate moves.

The ATen ops take ``float`` hyper-parameters: a trace would make a constant of a symbolic learning
rate. Ours take ``Scalar`` and call the same kernels, so the last bit is that of an eager step with
``fused=True``. Each has two forms with equal arguments: ``torchgraph::_fused_adamw_`` writes,
``torchgraph::_fused_adamw`` returns what the other would have written, list after list.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import fx

from .._torch import FUSED_KERNELS, OpOverload, fused_kernels_as, schema_of
from ..distributed.dtensors import parts_as
from ..errors import NoProgram
from ..ir import effects
from ..ir.aliasing import has_gaps
from ..ir.values import tensors_of

_ADAM = (
    "Tensor(a!)[] self, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] exp_avg_sqs, "
    "Tensor(d!)[] max_exp_avg_sqs, Tensor[] state_steps, *, {lr} lr, Scalar beta1, Scalar beta2, "
    "Scalar weight_decay, Scalar eps, bool amsgrad, bool maximize"
)
# Without a grad_scale no kernel writes the gradients, and none ever writes the step counters.
_ARGUMENTS = {
    "_fused_adam_": _ADAM,
    "_fused_adamw_": _ADAM,
    "_fused_sgd_": (
        "Tensor(a!)[] self, Tensor[] grads, Tensor(b!)[] momentum_buffer_list, *, "
        "Scalar weight_decay, Scalar momentum, {lr} lr, Scalar dampening, bool nesterov, "
        "bool maximize, bool is_first_step"
    ),
    "_fused_adagrad_": (
        "Tensor(a!)[] self, Tensor[] grads, Tensor(b!)[] state_sums, Tensor[] state_steps, *, "
        "{lr} lr, Scalar lr_decay, Scalar weight_decay, Scalar eps, bool maximize"
    ),
}
_OVERLOADS = {"default": "Scalar", "tensor_lr": "Tensor"}
_LIBRARY = torch.library.Library("torchgraph", "FRAGMENT")


def recorded() -> AbstractContextManager[None]:
    """Let ``torch._fused_adam_`` and kin call our ops, for the length of a trace."""
    here = threading.get_ident()

    def of_this_thread(name: str) -> Callable[..., None]:
        own, theirs = _recorded(name), getattr(torch, name)

        def kernel(*args: object, **kwargs: object) -> None:
            (own if threading.get_ident() == here else theirs)(*args, **kwargs)

        return kernel

    return fused_kernels_as({name: of_this_thread(name) for name in FUSED_KERNELS})


def kernel(op: OpOverload, node: fx.Node) -> Callable[..., None] | None:
    """torch's kernel, for a node of a lowered program that calls an in-place op of this module.

    The kernels walk over raw memory, and a convolution may lay out a gradient differently from its
    fake value, which lies as eager's does: gradients of more than two dimensions are looked at in
    each call.

    Raises:
        NoProgram: one has gaps in its memory, as ``x[::2]`` has, and the kernel reads those, too.
    """
    found = FUSED_KERNELS.get(schema_of(op).name.removeprefix("torchgraph::"))
    if found is None:
        return None
    values = list(tensors_of(node.args[1]))
    if any(map(has_gaps, values)):
        raise NoProgram(
            "A fused update takes a gradient with gaps in its memory, and reads what lies in them.",
            fix="leave fused out, or give it a gradient that is contiguous.",
        )
    doubtful = {i: value.stride() for i, value in enumerate(values) if value.ndim > 2}
    return _laying_out(found, lambda self: doubtful) if doubtful else found


def _laying_out(
    kernel: Callable[..., None],
    expected: Callable[[Sequence[torch.Tensor]], dict[int, tuple[int, ...]]],
) -> Callable[..., None]:
    """``kernel`` over gradients with the strides that are ``expected``, by position."""

    def update(
        self: Sequence[torch.Tensor],
        grads: Sequence[torch.Tensor],
        *lists: object,
        **options: object,
    ) -> None:
        for i, strides in expected(self).items():
            if grads[i].stride() != strides:
                grads = list(grads)
                # What autograd does to a gradient before it becomes ``.grad``.
                grads[i] = grads[i].new_empty_strided(grads[i].shape, strides).copy_(grads[i])
        kernel(self, grads, *lists, **options)

    return update


def _of_parameters(parameters: Sequence[torch.Tensor]) -> dict[int, tuple[int, ...]]:
    """Strides of gradients that no program states: those of their parameters, where in doubt."""
    return {i: one.stride() for i, one in enumerate(parameters) if one.ndim > 2}


def _functional(op: OpOverload, compute: Callable[..., None]) -> Callable[..., list[object]]:
    def update(*lists: Any, **options: object) -> list[object]:
        fresh = list(lists)
        for position in effects.written(op):
            fresh[position] = [tensor.clone() for tensor in lists[position]]
        compute(*fresh, **options)
        return effects.written_values(op, fresh)

    return update


def _define(name: str, overload: str) -> None:
    arguments = _ARGUMENTS[name].format(lr=_OVERLOADS[overload])
    suffix = "" if overload == "default" else f".{overload}"
    writing, returning = f"{name}{suffix}", f"{name.removesuffix('_')}{suffix}"
    _LIBRARY.define(f"{writing}({arguments}) -> ()")
    unwritten = re.sub(r"\(\w!\)", "", arguments)
    _LIBRARY.define(f"{returning}({unwritten}) -> Tensor[]")
    op = getattr(getattr(torch.ops.torchgraph, name), overload)
    # What is recorded is eager's own call, however the tensors lie.
    _LIBRARY.impl(writing, FUSED_KERNELS[name], "CompositeExplicitAutograd")
    update = _functional(op, _laying_out(FUSED_KERNELS[name], _of_parameters))
    _LIBRARY.impl(returning, update, "CompositeExplicitAutograd")

    def fake(*lists: object, **options: object) -> None:
        return None

    def fake_results(*lists: object, **options: object) -> list[torch.Tensor]:
        return [torch.empty_like(tensor) for tensor in effects.written_values(op, lists)]

    torch.library.register_fake(f"torchgraph::{writing}", fake, lib=_LIBRARY)
    torch.library.register_fake(f"torchgraph::{returning}", fake_results, lib=_LIBRARY)


def _recorded(name: str) -> Callable[..., None]:
    packet = getattr(torch.ops.torchgraph, name)

    def update(
        *lists: object,
        lr: object,
        grad_scale: object = None,
        found_inf: object = None,
        **options: object,
    ) -> None:
        if grad_scale is not None or found_inf is not None:  # never in a step that is written down
            scale = {"grad_scale": grad_scale, "found_inf": found_inf}
            FUSED_KERNELS[name](*lists, lr=lr, **scale, **options)
            return
        # torch's binding reads betas in tensors; only the learning rate has an overload of its own.
        numbers = {key: _number(value) for key, value in options.items()}
        op = packet.tensor_lr if isinstance(lr, torch.Tensor) else packet.default
        op(*_parts(lists), lr=lr, **numbers)

    return update


def _parts(lists: Sequence[Any]) -> list[list[torch.Tensor]]:
    """The local parts of parameters and of the tensors updated with them."""
    parameters = lists[0]
    return [parts_as(one, parameters) if one else [] for one in lists]


def _number(value: object) -> object:
    return value.item() if isinstance(value, torch.Tensor) else value


for _name in FUSED_KERNELS:
    for _overload in _OVERLOADS:
        _define(_name, _overload)
