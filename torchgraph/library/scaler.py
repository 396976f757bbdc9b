"""Ops of a GradScaler's step: unscale and look for infs, keep old states, rescale.

Each writing op has a functional form with equal arguments that returns what the other writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import _torch
from .._torch import OpOverload
from .definition import define

Tensor = torch.Tensor


def _unscale(
    grads: Sequence[Tensor], found_inf: Tensor, scale: Tensor, divide: bool = False
) -> None:
    # A product with the inverse is what unscale_() has; the quotient, what fused=True computes.
    inverse = torch.ones_like(scale) if divide else scale.double().reciprocal().float()
    for dtype in dict.fromkeys(grad.dtype for grad in grads):
        alike = [grad for grad in grads if grad.dtype is dtype]
        _torch.amp.unscale_(alike, found_inf, inverse)
    if divide:
        for grad in grads:
            grad.div_(scale)


def _keep(old: Sequence[Tensor], new: Sequence[Tensor], found_inf: Tensor) -> None:
    if found_inf.device.type == "cpu" or any(t.device != found_inf.device for t in old):
        if not found_inf.item():
            for kept, value in zip(old, new, strict=True):
                kept.copy_(value)
        return
    for kept, value in zip(old, new, strict=True):
        kept.copy_(torch.where(found_inf != 0, kept, value))


def _update_scale(
    state: Sequence[Tensor],
    found_inf: Tensor,
    growth_factor: float,
    backoff_factor: float,
    growth_interval: int,
) -> None:
    scale, good_steps = state
    _torch.amp.update_scale_(
        scale, good_steps, found_inf, growth_factor, backoff_factor, growth_interval
    )


def _two_forms(
    schema: str, compute: Callable[..., None], written: Callable[..., tuple[object, ...]]
) -> tuple[OpOverload, OpOverload]:
    """Define both forms of an op: the one that writes, the one that returns.

    ``written`` takes the arguments and returns those that are written, lists or tensors.
    """

    def returning(*args: object, **kwargs: object) -> list[Tensor]:
        held = [_cloned(value) for value in written(*args)]
        compute(*held, *args[len(held) :], **kwargs)
        return _flat(held)

    def returned(*args: object, **kwargs: object) -> list[Tensor]:
        return [torch.empty_like(tensor) for tensor in _flat(written(*args))]

    def nothing(*args: object, **kwargs: object) -> None:
        return None

    writing = define(f"{schema} -> ()", compute, nothing, compiled=False)
    plain = re.sub(r"\(\w!\)", "", schema.replace("_(", "(", 1))
    return writing, define(f"{plain} -> Tensor[]", returning, returned, compiled=False)


def _cloned(value: Any) -> object:
    return (
        [tensor.clone() for tensor in value] if isinstance(value, (list, tuple)) else value.clone()
    )


def _flat(values: Sequence[object]) -> list[Tensor]:
    lists = (value if isinstance(value, (list, tuple)) else (value,) for value in values)
    return [tensor for each in lists for tensor in each]


def _find_inf(grads: Sequence[Tensor]) -> Tensor:
    found = torch.zeros((), dtype=torch.float32, device=grads[0].device)
    # Times 1: what it writes is what is there.
    _torch.amp.unscale_(list(grads), found, torch.ones_like(found))
    return found


def _no_dimensions(grads: Sequence[Tensor]) -> Tensor:
    return grads[0].new_empty((), dtype=torch.float32)


find_inf = define("find_inf(Tensor[] grads) -> Tensor", _find_inf, _no_dimensions, compiled=False)
"""One float32 number: 1 where an element is not finite, else 0."""

unscale_, unscale = _two_forms(
    "unscale_(Tensor(a!)[] grads, Tensor(b!) found_inf, Tensor scale, bool divide=False)",
    _unscale,
    lambda grads, found_inf, *_: (grads, found_inf),
)
"""The gradients divided by ``scale``, then ``found_inf``: 1 where an element was not finite.

``scale`` and ``found_inf`` are one float32 number on the gradients' device. Gradients are
multiplied by the inverse, as `torch.amp.GradScaler.unscale_` does it; ``divide``: they are divided,
as the kernels of torch's fused optimizers do it.
"""

keep_, keep = _two_forms(
    "keep_(Tensor(a!)[] old, Tensor[] new, Tensor found_inf)", _keep, lambda old, *_: (old,)
)
"""``new``, or ``old`` where ``found_inf`` is not 0. Of equal shapes and dtypes, pair by pair."""

update_scale_, update_scale = _two_forms(
    "update_scale_(Tensor(a!)[] state, Tensor found_inf, Scalar growth_factor, "
    "Scalar backoff_factor, Scalar growth_interval)",
    _update_scale,
    lambda state, *_: (state,),
)
"""`torch.amp.GradScaler.update` of ``state``: the scale, the count of good steps."""
