"""Softmax cross-entropy: an op forward and one backward, without a tensor of the logits' size.

The forward reads the logits once and keeps a number per row, their ``lse`` (log of the sum of
exponentials). The backward makes the gradient from logits and ``lse``, in the logits' own memory
where a program no longer needs them. Online normalizer: Milakov and Gimelshein 2018.
"""

from __future__ import annotations

from typing import Any

import torch

from ....library.definition import define, differentiate
from ....library.dtypes import FLOATING, wide

Tensor = torch.Tensor
NONE, MEAN, SUM = range(3)
_REDUCTIONS = {"none": NONE, "mean": MEAN, "sum": SUM}


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """`torch.nn.functional.cross_entropy` for class indices, in one sweep over the logits.

    Args:
        logits: (C,), (N, C), or (N, C, d1, ...) whose classes lie side by side in memory; float32,
            float64, bfloat16 or float16.
        target: int64 class indices of the logits' shape without C.
        weight: (C,), a weight for each class; it gets no gradient.
        ignore_index: targets of this value give no loss and no gradient.
        reduction: ``"none"``, ``"mean"`` (by the targets' weights) or ``"sum"``.
        label_smoothing: from 0.0 to 1.0.

    Returns:
        The loss: of the target's shape for ``"none"``, else of no dimensions. float64 for float64
        logits and float32 for all others, as of ``F.cross_entropy(logits.float(), ...)``, whose
        copy of the logits is not made. The mean of no targets is NaN.

    Raises:
        IndexError: a target is no class (on the CPU; on CUDA the device asserts, as torch's does).
        ValueError: an unknown reduction, or classes that do not lie side by side.
        RuntimeError: other shapes, dtypes or devices than these; a weight that requires grad.
    """
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction is one of {', '.join(_REDUCTIONS)}, not {reduction!r}.")
    rows = _as_rows(logits)
    if weight is not None:
        weight = weight.to(wide(logits.dtype))
    loss, _, _ = torch.ops.torchgraph.cross_entropy(
        rows, target.reshape(-1), weight, _REDUCTIONS[reduction], ignore_index, label_smoothing
    )
    return loss.view(target.shape) if reduction == "none" else loss  # type: ignore[no-any-return]


def _as_rows(logits: Tensor) -> Tensor:
    if logits.dim() == 0:
        raise ValueError("logits have no dimension for the classes.")
    last = logits.movedim(1, -1) if logits.dim() > 2 else logits
    try:
        return last.view(-1, logits.shape[min(1, logits.dim() - 1)])
    except RuntimeError as cause:
        raise ValueError(
            f"The classes of logits of shape {tuple(logits.shape)} and strides {logits.stride()} "
            "do not lie side by side: use torch.nn.functional.cross_entropy."
        ) from cause


def _check(
    logits: Tensor, target: Tensor, weight: Tensor | None, reduction: int, label_smoothing: float
) -> None:
    _require(logits.dim() == 2, f"logits are (N, C), not of dimension {logits.dim()}.")
    _require(logits.dtype in FLOATING, f"logits of dtype {logits.dtype}.")
    _require(
        target.dim() == 1 and target.shape[0] == logits.shape[0],
        "targets are (N,), one class for each row of the logits.",
    )
    _require(target.dtype == torch.int64, "targets are int64 class indices.")
    _require(target.device == logits.device, "tensors on different devices.")
    if weight is not None:
        _require(
            weight.dim() == 1 and weight.shape[0] == logits.shape[1],
            "weights are (C,), one for each class.",
        )
        _require(
            weight.dtype == wide(logits.dtype),
            "weights are float64 for float64 logits, else float32.",
        )
        _require(weight.device == logits.device, "tensors on different devices.")
    _require(
        reduction in (NONE, MEAN, SUM),
        f"reduction is 0 (none), 1 (mean) or 2 (sum), not {reduction}.",
    )
    _require(
        0.0 <= label_smoothing <= 1.0, f"label_smoothing is from 0.0 to 1.0, not {label_smoothing}."
    )


def _require(fits: bool, message: str) -> None:
    if not fits:
        raise RuntimeError(f"cross_entropy: {message}")


def _shapes(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    _check(logits, target, weight, reduction, label_smoothing)
    dtype, rows = wide(logits.dtype), logits.shape[0]
    loss = logits.new_empty((rows,) if reduction == NONE else (), dtype=dtype)
    return loss, logits.new_empty((rows,), dtype=torch.float64), logits.new_empty((), dtype=dtype)


def _reference(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    _check(logits, target, weight, reduction, label_smoothing)
    kept, index = _targets(target, ignore_index, logits.shape[1])
    x = logits.to(wide(logits.dtype))
    highest = x.amax(1) if x.numel() else x.new_zeros(x.shape[0])
    start = torch.where(highest == -torch.inf, 0.0, highest)
    spread = (x - start[:, None]).exp().sum(1).double().log()
    w = x.new_ones(()).expand(x.shape[0]) if weight is None else weight[index]
    at_target = x.gather(1, index[:, None]).squeeze(1)
    losses = w * ((highest.double() - at_target) + spread)
    if label_smoothing:
        away = x - start[:, None]
        total = float(x.shape[1]) if weight is None else weight.sum(dtype=torch.float64)
        apart = (away if weight is None else away * weight).sum(1, dtype=torch.float64)
        over_all = total * spread - apart
        losses = (1 - label_smoothing) * losses + label_smoothing / x.shape[1] * over_all
    losses = torch.where(kept, losses, 0.0)
    lse = torch.where(kept, highest + spread, 0.0)
    total_weight = torch.where(kept, w, 0.0).sum(dtype=torch.float64)
    loss = losses if reduction == NONE else losses.sum()
    if reduction == MEAN:
        loss = loss / total_weight
    return loss.to(x.dtype), lse, total_weight.to(x.dtype)


def _targets(target: Tensor, ignore_index: int, classes: int) -> tuple[Tensor, Tensor]:
    """The mask of the rows that count, and a valid class for each row."""
    kept = target != ignore_index
    index = torch.where(kept, target, 0)
    if target.is_cpu:
        outside = (index < 0) | (kept & (index >= classes))
        if outside.any():
            raise IndexError(f"Target {target[outside][0].item()} is out of bounds.")
    return kept, index


def _check_backward(
    logits: Tensor,
    grad_loss: Tensor,
    target: Tensor,
    lse: Tensor,
    total_weight: Tensor,
    weight: Tensor | None,
    reduction: int,
    label_smoothing: float,
) -> None:
    _check(logits, target, weight, reduction, label_smoothing)
    shape = logits.shape[:1] if reduction == NONE else ()
    _require(grad_loss.shape == shape, "grad_loss has the shape of the loss.")
    _require(
        grad_loss.dtype == total_weight.dtype == wide(logits.dtype),
        "grad_loss and total_weight are float64 for float64 logits, else float32.",
    )
    _require(lse.shape == logits.shape[:1] and lse.dtype == torch.float64, "lse is (N,), float64.")
    _require(total_weight.dim() == 0, "total_weight is one number.")
    devices = {logits.device, grad_loss.device, lse.device, total_weight.device}
    _require(len(devices) == 1, "tensors on different devices.")


def _gradient_shape(
    logits: Tensor,
    grad_loss: Tensor,
    target: Tensor,
    lse: Tensor,
    total_weight: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    _check_backward(
        logits, grad_loss, target, lse, total_weight, weight, reduction, label_smoothing
    )
    return logits.new_empty(logits.shape)


def _gradient_reference(
    logits: Tensor,
    grad_loss: Tensor,
    target: Tensor,
    lse: Tensor,
    total_weight: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    _check_backward(
        logits, grad_loss, target, lse, total_weight, weight, reduction, label_smoothing
    )
    kept, index = _targets(target, ignore_index, logits.shape[1])
    x = logits.to(wide(logits.dtype))
    grad = grad_loss.double() / (total_weight if reduction == MEAN else 1.0)
    grad = grad.expand(x.shape[0])
    w = torch.ones_like(grad) if weight is None else weight[index].double()
    all_weights = x.shape[1] if weight is None else weight.sum(dtype=torch.float64)
    smooth = label_smoothing / x.shape[1]
    high = lse.to(x.dtype)
    low = (lse - high).to(x.dtype)
    factor = grad * ((1 - label_smoothing) * w + smooth * all_weights)
    out = ((x - high[:, None]) - low[:, None]).exp() * factor.to(x.dtype)[:, None]
    if label_smoothing:
        out -= (grad * smooth).to(x.dtype)[:, None] * (1 if weight is None else weight)
    at_target = (grad * (1 - label_smoothing) * w).to(x.dtype)
    out.scatter_add_(1, index[:, None], -at_target[:, None])
    return torch.where(kept[:, None], out, 0.0).to(logits.dtype)


def _gradient_reference_in_place(logits: Tensor, *args: Any) -> None:
    logits.copy_(_gradient_reference(logits, *args))


def _in_place_check(logits: Tensor, *args: Any) -> None:
    _gradient_shape(logits, *args)


_OPTIONS = "Tensor? weight=None, int reduction=1, int ignore_index=-100, float label_smoothing=0.0"
_STATISTICS = "Tensor grad_loss, Tensor target, Tensor lse, Tensor total_weight"

forward = define(
    f"cross_entropy(Tensor logits, Tensor target, {_OPTIONS}) "
    "-> (Tensor loss, Tensor lse, Tensor total_weight)",
    _reference,
    _shapes,
)
"""``(loss, lse, total_weight)`` of logits (N, C) of any strides.

``lse`` is (N,) and float64, 0 where the target is ignored. ``total_weight`` is what the mean is
divided by. Only the loss is differentiable.
"""

backward = define(
    f"cross_entropy_backward(Tensor logits, {_STATISTICS}, {_OPTIONS}) -> Tensor",
    _gradient_reference,
    _gradient_shape,
)
"""The gradient by the logits: contiguous, of their dtype."""

backward_in_place = define(
    f"cross_entropy_backward_(Tensor(a!) logits, {_STATISTICS}, {_OPTIONS}) -> ()",
    _gradient_reference_in_place,
    _in_place_check,
)
"""Like `backward`, written over the logits, which may not share memory with anything else."""


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, target, weight, *ctx.options = inputs
    if weight is not None and weight.requires_grad:
        raise RuntimeError("cross_entropy: the derivative for 'weight' is not implemented.")
    _, lse, total_weight = output
    ctx.mark_non_differentiable(lse, total_weight)
    ctx.save_for_backward(logits, target, lse, total_weight, weight)


def _differentiate(ctx: Any, grad_loss: Tensor, *_: object) -> tuple[Tensor | None, ...]:
    logits, target, lse, total_weight, weight = ctx.saved_tensors
    if torch.is_grad_enabled():  # the gradient is to be differentiated: by ATen, which can
        grad = _differentiable(logits, grad_loss, target, weight, *ctx.options)
    else:
        grad = backward(logits, grad_loss, target, lse, total_weight, weight, *ctx.options)
    return (grad, *[None] * 5)


def _differentiable(
    logits: Tensor,
    grad_loss: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    label_smoothing: float,
) -> Tensor:
    loss = torch.nn.functional.cross_entropy(
        logits.to(wide(logits.dtype)),
        target,
        weight,
        ignore_index=ignore_index,
        reduction=list(_REDUCTIONS)[reduction],
        label_smoothing=label_smoothing,
    )
    (grad,) = torch.autograd.grad(loss, logits, grad_loss, create_graph=True)
    return grad


differentiate(forward, _differentiate, _save)
