"""Layer norm and RMS norm together with the residual addition before them, and their backward.

``add_layer_norm(x, residual, ...)`` normalizes ``x + residual`` and returns the sum too; its
backward takes the gradient of the sum and adds it. The forward reads two tensors and writes two,
the backward reads three and writes one, with the gradients by weight and bias in the same sweep.
Layer norm: Ba, Kiros and Hinton 2016. RMS norm: Zhang and Sennrich 2019.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from ....library.definition import define, differentiate
from ....library.dtypes import FLOATING, wide

Tensor = torch.Tensor


def _require(fits: bool, message: str) -> None:
    if not fits:
        raise RuntimeError(f"norm: {message}")


def _check_x(x: Tensor) -> None:
    _require(x.dim() > 0 and x.shape[-1] > 0, "there is no last dimension to normalize.")
    _require(x.dtype in FLOATING, f"a tensor of dtype {x.dtype}.")


def _check_like(x: Tensor, name: str, other: Tensor | None) -> None:
    if other is not None:
        same = (other.shape, other.dtype, other.device) == (x.shape, x.dtype, x.device)
        _require(same, f"{name} is of x's shape, dtype and device.")


def _check_parameter(x: Tensor, name: str, parameter: Tensor | None) -> None:
    if parameter is not None:
        _require(
            parameter.shape == x.shape[-1:],
            f"{name} has one element for each of the last dimension.",
        )
        _require(
            parameter.dtype in (x.dtype, wide(x.dtype)), f"{name} is of x's dtype, or float32."
        )
        _require(parameter.device == x.device, "tensors on different devices.")


def _check_statistic(x: Tensor, name: str, statistic: Tensor) -> None:
    same = (statistic.shape, statistic.dtype) == ((*x.shape[:-1], 1), wide(x.dtype))
    _require(
        same and statistic.device == x.device,
        f"{name} has x's shape but for a last dimension of 1, in the wide dtype.",
    )


# --- forward --------------------------------------------------------------------------------------


def _results(x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Empty tensors for the sum, the output and a statistic."""
    total = x.new_empty(x.shape if residual is not None else (0,))
    statistic = x.new_empty((*x.shape[:-1], 1), dtype=wide(x.dtype))
    return total, x.new_empty(x.shape), statistic


def _layer_shapes(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check_forward(x, residual, weight, bias)
    total, out, mean = _results(x, residual)
    return total, out, mean, torch.empty_like(mean)


def _rms_shapes(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    _check_forward(x, residual, weight, None)
    return _results(x, residual)


def _check_forward(x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor | None) -> None:
    _check_x(x)
    _check_like(x, "residual", residual)
    _check_parameter(x, "weight", weight)
    _check_parameter(x, "bias", bias)


def _layer_reference(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check_forward(x, residual, weight, bias)
    total, values = _added(x, residual)
    mean = values.mean(-1, keepdim=True)
    away = values - mean
    rstd = (away.square().mean(-1, keepdim=True) + eps).rsqrt()
    out = away * rstd * weight.to(values.dtype)
    if bias is not None:
        out = out + bias.to(values.dtype)
    return total, out.to(x.dtype), mean, rstd


def _rms_reference(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    _check_forward(x, residual, weight, None)
    total, values = _added(x, residual)
    rstd = (values.square().mean(-1, keepdim=True) + eps).rsqrt()
    return total, (values * rstd * weight.to(values.dtype)).to(x.dtype), rstd


def _added(x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
    """The sum, and what is normalized in the wide dtype."""
    x = x.contiguous()
    total = x.new_empty(0) if residual is None else (x + residual).contiguous()
    return total, (x if residual is None else total).to(wide(x.dtype))


# --- backward -------------------------------------------------------------------------------------


def _check_backward(
    grad_out: Tensor, grad_sum: Tensor | None, total: Tensor, rstd: Tensor, weight: Tensor
) -> None:
    _check_x(total)
    _check_like(total, "grad_out", grad_out)
    _check_like(total, "grad_sum", grad_sum)
    _check_statistic(total, "rstd", rstd)
    _check_parameter(total, "weight", weight)


def _layer_gradient_shapes(
    grad_out: Tensor,
    grad_sum: Tensor | None,
    sum: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    _check_backward(grad_out, grad_sum, sum, rstd, weight)
    _check_statistic(sum, "mean", mean)
    of_weight = weight.new_empty(weight.shape)
    return sum.new_empty(sum.shape), of_weight, torch.empty_like(of_weight)


def _rms_gradient_shapes(
    grad_out: Tensor, grad_sum: Tensor | None, sum: Tensor, rstd: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    _check_backward(grad_out, grad_sum, sum, rstd, weight)
    return sum.new_empty(sum.shape), weight.new_empty(weight.shape)


def _layer_gradient_reference(
    grad_out: Tensor,
    grad_sum: Tensor | None,
    sum: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    _check_backward(grad_out, grad_sum, sum, rstd, weight)
    _check_statistic(sum, "mean", mean)
    dtype = wide(sum.dtype)
    g, normal = grad_out.to(dtype), (sum.to(dtype) - mean) * rstd
    weighted = g * weight.to(dtype)
    slope = (weighted * normal).mean(-1, keepdim=True)
    grad = (weighted - normal * slope - weighted.mean(-1, keepdim=True)) * rstd
    rows = (-1, sum.shape[-1])
    by_weight = (g * normal).reshape(rows).sum(0).to(weight.dtype)
    return _finish(grad, grad_sum, sum), by_weight, g.reshape(rows).sum(0).to(weight.dtype)


def _rms_gradient_reference(
    grad_out: Tensor, grad_sum: Tensor | None, sum: Tensor, rstd: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    _check_backward(grad_out, grad_sum, sum, rstd, weight)
    dtype = wide(sum.dtype)
    g, normal = grad_out.to(dtype), sum.to(dtype) * rstd
    weighted = g * weight.to(dtype)
    grad = (weighted - normal * (weighted * normal).mean(-1, keepdim=True)) * rstd
    by_weight = (g * normal).reshape(-1, sum.shape[-1]).sum(0)
    return _finish(grad, grad_sum, sum), by_weight.to(weight.dtype)


def _finish(grad: Tensor, grad_sum: Tensor | None, total: Tensor) -> Tensor:
    grad = grad if grad_sum is None else grad + grad_sum.to(grad.dtype)
    return grad.to(total.dtype).contiguous()


# --- the ops --------------------------------------------------------------------------------------

add_layer_norm = define(
    "add_layer_norm(Tensor x, Tensor? residual, Tensor weight, Tensor? bias, float eps) "
    "-> (Tensor sum, Tensor out, Tensor mean, Tensor rstd)",
    _layer_reference,
    _layer_shapes,
)
"""``layer_norm(x + residual)`` over the last dimension, and the sum.

``x``: any shape, float32, float64, bfloat16 or float16; ``weight`` and ``bias`` of its dtype or
float32. ``sum`` and ``out`` are contiguous and of x's dtype; ``mean`` and ``rstd`` have a last
dimension of 1 and are float32, for float64 float64. Without a residual ``sum`` is empty.
"""

add_rms_norm = define(
    "add_rms_norm(Tensor x, Tensor? residual, Tensor weight, float eps) "
    "-> (Tensor sum, Tensor out, Tensor rstd)",
    _rms_reference,
    _rms_shapes,
)
"""``rms_norm(x + residual)``, likewise."""

add_layer_norm_backward = define(
    "add_layer_norm_backward(Tensor grad_out, Tensor? grad_sum, Tensor sum, Tensor mean, "
    "Tensor rstd, Tensor weight) -> (Tensor grad, Tensor grad_weight, Tensor grad_bias)",
    _layer_gradient_reference,
    _layer_gradient_shapes,
)
"""The gradient by x, which is that by the residual too, with ``grad_sum`` added; by the parameters.

``sum`` is what was normalized.
"""

add_rms_norm_backward = define(
    "add_rms_norm_backward(Tensor grad_out, Tensor? grad_sum, Tensor sum, Tensor rstd, "
    "Tensor weight) -> (Tensor grad, Tensor grad_weight)",
    _rms_gradient_reference,
    _rms_gradient_shapes,
)
"""The backward of RMS norm, with the addition of a gradient."""


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, residual, weight, *ctx.others = inputs
    total, _, *statistics = output
    ctx.mark_non_differentiable(*statistics)
    ctx.set_materialize_grads(False)
    kept = x if residual is None else total
    ctx.save_for_backward(x, residual, weight, kept, *statistics)


def _differentiate_layer(
    ctx: Any, grad_sum: Tensor | None, grad_out: Tensor | None, *_: object
) -> tuple[Tensor | None, ...]:
    x, residual, weight, kept, mean, rstd = ctx.saved_tensors
    bias, eps = ctx.others
    grad_sum = None if residual is None else grad_sum
    if grad_out is None:
        return grad_sum, grad_sum, None, None, None
    if torch.is_grad_enabled():  # the gradient is to be differentiated: by ATen, which can
        added = x if residual is None else x + residual
        out = F.layer_norm(
            added,
            added.shape[-1:],
            weight.to(x.dtype),
            None if bias is None else bias.to(x.dtype),
            eps,
        )
        return (*_by_aten(added, out, (x, residual, weight, bias), grad_sum, grad_out), None)
    grad, by_weight, by_bias = add_layer_norm_backward(grad_out, grad_sum, kept, mean, rstd, weight)
    by_bias = None if bias is None else by_bias.to(bias.dtype)
    return grad, None if residual is None else grad, by_weight, by_bias, None


def _differentiate_rms(
    ctx: Any, grad_sum: Tensor | None, grad_out: Tensor | None, *_: object
) -> tuple[Tensor | None, ...]:
    x, residual, weight, kept, rstd = ctx.saved_tensors
    (eps,) = ctx.others
    grad_sum = None if residual is None else grad_sum
    if grad_out is None:
        return grad_sum, grad_sum, None, None
    if torch.is_grad_enabled():
        added = x if residual is None else x + residual
        out = F.rms_norm(added, added.shape[-1:], weight.to(x.dtype), eps)
        return (*_by_aten(added, out, (x, residual, weight), grad_sum, grad_out), None)
    grad, by_weight = add_rms_norm_backward(grad_out, grad_sum, kept, rstd, weight)
    return grad, None if residual is None else grad, by_weight, None


def _by_aten(
    added: Tensor,
    out: Tensor,
    inputs: tuple[Tensor | None, ...],
    grad_sum: Tensor | None,
    grad_out: Tensor,
) -> tuple[Tensor | None, ...]:
    roots, grads = ([out], [grad_out]) if grad_sum is None else ([out, added], [grad_out, grad_sum])
    wanted = [each for each in inputs if each is not None and each.requires_grad]
    found = iter(torch.autograd.grad(roots, wanted, grads, create_graph=True))
    return tuple(
        next(found) if each is not None and each.requires_grad else None for each in inputs
    )


differentiate(add_layer_norm, _differentiate_layer, _save)
differentiate(add_rms_norm, _differentiate_rms, _save)
