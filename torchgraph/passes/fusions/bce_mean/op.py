"""The mean binary cross-entropy of logits: an op forward and one backward, one pass each."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from ....library.definition import define, differentiate
from ....library.dtypes import FLOATING, wide

Tensor = torch.Tensor


def _check(logits: Tensor, target: Tensor) -> None:
    for name, tensor in (("logits", logits), ("target", target)):
        _require(tensor.dtype in FLOATING, f"{name} must be a floating-point tensor.")
    same = (logits.shape, logits.device) == (target.shape, target.device)
    _require(same, "logits and target must have one shape and device.")


def _check_backward(grad_loss: Tensor, logits: Tensor, target: Tensor) -> None:
    _check(logits, target)
    one = grad_loss.dtype in FLOATING and grad_loss.dim() == 0
    _require(
        one and grad_loss.device == logits.device,
        "grad_loss must be a floating-point number of no dimensions, on the device of the logits.",
    )


def _require(fits: bool, message: str) -> None:
    if not fits:
        raise RuntimeError(f"torchgraph::bce_with_logits_mean: {message}")


def _require_addresses(logits: Tensor, target: Tensor) -> None:
    for name, tensor in (("logits", logits), ("target", target)):
        aligned = tensor.data_ptr() % tensor.itemsize == 0
        _require(aligned, f"{name} begins at an address where no element of its dtype may be.")


def reference(logits: Tensor, target: Tensor) -> Tensor:
    """The op's definition in ATen."""
    _check(logits, target)
    _require_addresses(logits, target)
    x, t = logits.to(wide(logits.dtype)), target.to(wide(logits.dtype))
    losses = torch.rsub(t, 1).mul_(x).sub_(F.logsigmoid(x))
    return losses.mean()


def backward_reference(grad_loss: Tensor, logits: Tensor, target: Tensor) -> Tensor:
    """The backward op's definition in ATen."""
    _check_backward(grad_loss, logits, target)
    _require_addresses(logits, target)
    dtype = wide(logits.dtype)
    factor = (grad_loss.double() / max(1, logits.numel())).to(dtype)
    grad = torch.sigmoid(logits.to(dtype)).sub_(target.to(dtype)).mul_(factor)
    return _gradient_shape(grad_loss, logits, target).copy_(grad)


def _loss_shape(logits: Tensor, target: Tensor) -> Tensor:
    _check(logits, target)
    return logits.new_empty((), dtype=wide(logits.dtype))


def _gradient_shape(grad_loss: Tensor, logits: Tensor, target: Tensor) -> Tensor:
    _check_backward(grad_loss, logits, target)
    return torch.empty_like(logits)


forward = define(
    "bce_with_logits_mean(Tensor logits, Tensor target) -> Tensor", reference, _loss_shape
)
"""`torch.nn.functional.binary_cross_entropy_with_logits`, unweighted, its mean.

``logits`` and ``target``: of one shape and any strides, each float32, float64, bfloat16 or
float16. The loss has no dimensions; it is float64 for float64 logits, else float32, and so is the
arithmetic. The mean of no losses is NaN. Differentiable by both, any number of times.
"""

backward = define(
    "bce_with_logits_mean_backward(Tensor grad_loss, Tensor logits, Tensor target) -> Tensor",
    backward_reference,
    _gradient_shape,
)
"""The gradient by the logits: of their dtype, laid out as they are. ``grad_loss`` is one number."""


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
    logits, target = ctx.saved_tensors
    of_logits, of_target = ctx.needs_input_grad
    dtype = wide(logits.dtype)
    share = grad_loss / max(1, logits.numel())
    by_logits = by_target = None
    if of_logits and torch.is_grad_enabled():  # by ATen, which can be differentiated again
        sigmoid = torch.sigmoid(logits.to(dtype))
        by_logits = ((sigmoid - target.to(dtype)) * share).to(logits.dtype)
    elif of_logits:
        by_logits = backward(grad_loss, logits, target)
    if of_target:
        by_target = (-share * logits.to(dtype)).to(target.dtype)
    return by_logits, by_target


differentiate(forward, _differentiate, _save)
