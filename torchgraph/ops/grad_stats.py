"""Statistics of many gradients in one read of them: their norm, and how many are not finite.

What `torch.nn.utils.clip_grad_norm_` and `torch.amp.GradScaler` ask on the way to a step, without
a copy to the host: ``found_inf`` and ``clip_coef`` of an update op come from here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .library import define

Tensor = torch.Tensor
_FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def _check(grads: Sequence[Tensor], p: float, grad_scale: Tensor | None) -> None:
    if p == 0 or p != p:
        _refuse("p must be a number other than 0.")
    if not grads:
        _refuse("there are no gradients.")
    for i, grad in enumerate(grads):
        strided = grad.layout == torch.strided
        if grad.dtype not in _FLOATING or grad.device != grads[0].device or not strided:
            _refuse(f"grads[{i}] must be a floating-point tensor on the device of grads[0].")
    if grad_scale is not None:
        fits = grad_scale.numel() == 1 and grad_scale.dtype in _FLOATING
        if not fits or grad_scale.device != grads[0].device:
            _refuse("grad_scale must be one floating-point number on the device of the gradients.")


def _refuse(message: str) -> None:
    raise RuntimeError(f"torchgraph::grad_stats: {message}")


def _norm_dtype(grads: Sequence[Tensor]) -> torch.dtype:
    wide = any(grad.dtype == torch.float64 for grad in grads)
    return torch.float64 if wide else torch.float32


def reference(
    grads: Sequence[Tensor], p: float = 2.0, grad_scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """What the op computes, in ATen."""
    _check(grads, p, grad_scale)
    for i, grad in enumerate(grads):
        if grad.data_ptr() % grad.itemsize:
            _refuse(f"grads[{i}] begins at an address where no {grad.dtype} may be.")
    wide = torch.float64
    some = [grad for grad in grads if grad.numel()]
    norms = [torch.linalg.vector_norm(grad, p, dtype=wide) for grad in some]
    # Of no elements: the sum of nothing, or the smallest of nothing.
    norm = torch.full((), 0.0 if p > 0 else torch.inf, dtype=wide, device=grads[0].device)
    if norms:
        norm = torch.linalg.vector_norm(torch.stack(norms), p)
    if grad_scale is not None:
        norm = norm / grad_scale.reshape(()).to(wide).abs()
    not_finite = sum((~torch.isfinite(grad)).sum() for grad in grads)
    return norm.to(_norm_dtype(grads)), torch.as_tensor(not_finite).to(torch.float32)


def _shapes(
    grads: Sequence[Tensor], p: float = 2.0, grad_scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    _check(grads, p, grad_scale)
    norm = grads[0].new_empty((), dtype=_norm_dtype(grads))
    return norm, grads[0].new_empty((), dtype=torch.float32)


grad_stats = define(
    "grad_stats(Tensor[] grads, float p=2.0, Tensor? grad_scale=None) "
    "-> (Tensor norm, Tensor not_finite)",
    reference,
    _shapes,
)
"""``(norm, not_finite)`` of all elements of ``grads``, which may have any shapes and strides.

``norm`` is the p-norm of `torch.nn.utils.get_total_norm`, for any p but 0, divided by
``grad_scale``; float64 where a gradient is, else float32. It is added up in float64, on the CPU the
squares of float32 eight at a time before that: the 2-norm is within 4e-7 of the exact one, however
large or small the numbers are, all others within rounding. ``not_finite`` is the count of NaN and
infinite elements as a float32 number, which a GradScaler takes as its ``found_inf``. Both have no
dimensions. The norm of no elements is 0, of a negative p infinite.
"""


def _coefficient(norm: Tensor, max_norm: float, eps: float = 1e-6) -> Tensor:
    return torch.clamp(max_norm / (norm + eps), max=1.0)


clip_coefficient = define(
    "clip_coefficient(Tensor norm, float max_norm, float eps=1e-6) -> Tensor",
    _coefficient,
    compiled=False,
)
"""What `torch.nn.utils.clip_grads_with_norm_` multiplies gradients by: at most 1."""
