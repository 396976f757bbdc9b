"""Ops of ours as what ATen computes: another machine has torch, and not this package.

So for what oneDNN makes of an LSTM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import library
from .._torch import OpOverload, schema_of
from ..lower.numbers import tensor_forms
from ..passes.fusions.model_update.reference import REFERENCES
from . import quantiles
from .recurrent import layer_backward

Tensor = torch.Tensor
aten = torch.ops.aten

PASSED_ON = frozenset(
    {
        library.gradient,
        library.accumulated,
        library.before_update,
        library.after,
        library.amp_white,
        library.amp_black,
    }
)
"""Ops that say something about their first argument, which is their value."""

RENAMED: dict[OpOverload, OpOverload] = {
    library.normal: aten.normal_functional.default,
    library.grouped_mm: aten._grouped_mm.default,
}
"""Ops that differ from one of ATen's in what no exported program has: a fake kernel, say."""


def form_of(op: object) -> Callable[..., Any] | None:
    """A function over tensors that computes what an op does; None for what stays as it is.

    Numbers among its arguments are tensors without dimensions, or Python's.
    """
    if op in _FORMS:
        return _FORMS[op]
    if isinstance(op, OpOverload):
        rule = _FUSED.get(schema_of(op).name.removeprefix("torchgraph::"))
        return None if rule is None else _fused(op, *rule)
    return None


def _keep(old: Sequence[Tensor], new: Sequence[Tensor], found_inf: Tensor) -> list[Tensor]:
    return [
        torch.where(found_inf.to(was.device) != 0, was, now)
        for was, now in zip(old, new, strict=True)
    ]


def _find_inf(grads: Sequence[Tensor]) -> Tensor:
    bad = [torch.isfinite(grad).logical_not().any() for grad in grads]
    return torch.stack(bad).any().float()


def _unscale(
    grads: Sequence[Tensor], found_inf: Tensor, scale: Tensor, divide: bool = False
) -> list[Tensor]:
    inverse = scale.double().reciprocal().float()
    unscaled = [
        grad / scale if divide else (grad.float() * inverse).to(grad.dtype) for grad in grads
    ]
    return [*unscaled, torch.maximum(found_inf, _find_inf(grads))]


def _emit(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def _update_scale(
    state: Sequence[Any], found_inf: Any, growth: Any, backoff: Any, interval: Any
) -> list[Any]:
    return list(tensor_forms.rescaled(_emit, state, found_inf, growth, backoff, interval))


def _bernoulli(like: Tensor, p: float) -> Tensor:
    """Drawn in the order of the memory of ``like``, as its in-place op does."""
    order = sorted(range(like.ndim), key=lambda dim: like.stride(dim), reverse=True)
    fresh = torch.empty([like.shape[i] for i in order], dtype=like.dtype, device=like.device)
    drawn: Tensor = aten.bernoulli.p(fresh, p)
    return drawn.permute([order.index(i) for i in range(like.ndim)])


_FORMS: dict[object, Callable[..., Any]] = {
    library.bernoulli: _bernoulli,
    library.quantile: quantiles.quantile,
    library.quantile_places: quantiles.places,
    library.keep: _keep,
    library.find_inf: _find_inf,
    library.unscale: _unscale,
    library.update_scale: _update_scale,
    aten.mkldnn_rnn_layer_backward.default: layer_backward,
}

_FUSED: dict[str, tuple[str, tuple[str, ...], frozenset[str]]] = {
    "_fused_adam": ("adam", ("exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "steps"), frozenset()),
    "_fused_adamw": (
        "adam",
        ("exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "steps"),
        frozenset({"decoupled"}),
    ),
    "_fused_adagrad": ("adagrad", ("state_sums", "steps"), frozenset()),
    "_fused_sgd": ("sgd", ("momentum_buffers",), frozenset()),
}
"""torch's fused kernels: our rule, its lists behind parameters and gradients, its flags."""


def _fused(
    op: OpOverload, rule: str, names: tuple[str, ...], flags: frozenset[str]
) -> Callable[..., list[Tensor]]:
    written = [name for name in names if name != "steps"]

    def form(parameters: Any, grads: Any, *lists: Any, **options: Any) -> list[Tensor]:
        numbers = {name: value for name, value in options.items() if not isinstance(value, bool)}
        on = set(flags) | {name for name, value in options.items() if value is True}
        slots = {name: values for name, values in zip(names, lists, strict=True) if values}
        updated: dict[str, list[Tensor]] = {name: [] for name in ("", *written)}
        for i, (parameter, grad) in enumerate(zip(parameters, grads, strict=True)):
            found = _one(REFERENCES[rule], parameter, grad, _at(slots, i), numbers, on)
            for name, values in updated.items():
                if name in found:
                    values.append(found[name])
        return [value for values in updated.values() for value in values]

    return form


def _at(slots: dict[str, Sequence[Tensor]], i: int) -> dict[str, Tensor]:
    return {name: values[i] for name, values in slots.items()}


def _one(
    update: Any,
    parameter: Tensor,
    grad: Tensor,
    slots: dict[str, Tensor],
    numbers: dict[str, Any],
    on: set[str],
) -> dict[str, Tensor]:
    """The update of one parameter, whose new value has no name, in float32 at least."""
    wide = torch.promote_types(parameter.dtype, torch.float32)
    dtypes = {name: slot.dtype for name, slot in slots.items()}
    state = {name: slot.to(wide) for name, slot in slots.items()}
    if "steps" in state:
        state["steps"] = slots["steps"].double()
    given = {
        name: value
        if isinstance(value, Tensor)
        else torch.full((), float(value), dtype=torch.float64, device=parameter.device)
        for name, value in numbers.items()
    }
    grad = grad.neg() if "maximize" in on else grad
    new = update(parameter.to(wide), grad.to(wide), state, given, on)
    found = {name: state[name].to(dtype) for name, dtype in dtypes.items()}
    return {"": new.to(parameter.dtype), **found}
