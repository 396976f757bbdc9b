"""LAMB: Adam whose step is as long as the parameter, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.linalg import vector_norm
from torch.optim.optimizer import ParamsT

from .._torch import foreach as many
from ..errors import InvalidOption
from ..options.checking import fitting, is_number, shown
from .base import PerParameter, check_common, check_flags, gradients

_LARGE = 100_000


class LAMB(PerParameter):
    """LAMB, from You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76
    minutes" (2019), arXiv:1904.00962, Algorithm 2, with OneFlow's options.

    For a parameter ``x`` of any shape with gradient ``g``, moments ``m`` and ``v``, which start at
    0, in step ``t`` = 1, 2, ...::

        m = beta1 m + (1 - beta1) g
        v = beta2 v + (1 - beta2) g^2
        r = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)
        u = r + weight_decay x
        x = x - lr |x| / |u| u

    ``|.|`` is the 2-norm over one parameter; the *trust ratio* ``|x| / |u|`` is 1 where either norm
    is 0. OneFlow divides by ``|r|``, which differs where there is a decoupled weight decay:
    ``decay_in_trust_ratio=False``.

    Slots: ``step`` (float32 on the CPU), ``exp_avg`` and ``exp_avg_sq`` of the parameter's shape,
    dtype and device.

    Args:
        params: Parameters, named parameters or param groups; real, of any floating dtype. Of 16-bit
            ones ``u`` and the norms are computed in float32.
        lr: Learning rate, a number.
        betas: Of the two moments.
        eps: Added to the root.
        weight_decay: Decoupled weight decay.
        adam_w_mode: False: the decay is an L2 penalty instead, ``g + weight_decay x`` for ``g`` and
            ``r`` for ``u``.
        do_bias_correction: False: without the divisions by ``1 - beta^t``.
        amsgrad: Not supported.
        decay_in_trust_ratio: True: the paper's trust ratio, ``|x| / |u|``. False: OneFlow's,
            ``|x| / |r|``.
        maximize: Go up instead of down.
        foreach: One op over many tensors: faster on CUDA, where it is the default, and for many
            small tensors on the CPU, slower for large ones there. The same bits on the CPU, where
            it leaves 16-bit parameters out.

    Raises:
        InvalidOption: a setting out of its range, one given as a tensor, a complex parameter, or
            ``amsgrad=True``.
    """

    __module__ = "torchgraph.optim"  # where it is imported from

    @fitting
    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adam_w_mode: bool = True,
        do_bias_correction: bool = True,
        amsgrad: bool = False,
        *,
        decay_in_trust_ratio: bool = True,
        maximize: bool = False,
        foreach: bool | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "adam_w_mode": adam_w_mode,
            "do_bias_correction": do_bias_correction,
            "amsgrad": amsgrad,
            "decay_in_trust_ratio": decay_in_trust_ratio,
            "maximize": maximize,
            "foreach": foreach,
        }
        self._check_settings(defaults)
        super().__init__(params, defaults)

    @staticmethod
    def _check_settings(group: dict[str, Any]) -> None:
        check_common(group)
        if not is_number(group["eps"]) or group["eps"] < 0.0:
            raise InvalidOption(f"Invalid epsilon value: {shown(group['eps'])}")
        check_flags(group, "adam_w_mode", "do_bias_correction", "decay_in_trust_ratio")
        if group["amsgrad"]:
            raise InvalidOption("LAMB does not support AMSGrad variant")

    @staticmethod
    def _first_slots(parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "step": torch.zeros((), dtype=torch.float32, device="cpu"),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }

    def _update(
        self, group: dict[str, Any], parameters: list[torch.Tensor], *, foreach: bool
    ) -> None:
        slots = [self.state[parameter] for parameter in parameters]
        update = foreach_lamb if foreach else lamb
        update(
            parameters,
            gradients(parameters),
            [slot["exp_avg"] for slot in slots],
            [slot["exp_avg_sq"] for slot in slots],
            [slot["step"] for slot in slots],
            Settings(*(group[name] for name in Settings._fields)),
        )


class Settings(NamedTuple):
    """The settings of a param group that an update reads."""

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    adam_w_mode: bool
    do_bias_correction: bool
    decay_in_trust_ratio: bool
    maximize: bool

    @property
    def decoupled(self) -> bool:
        """True when the weights decay beside the gradient, not in it."""
        return self.weight_decay != 0 and self.adam_w_mode

    @property
    def in_gradient(self) -> bool:
        """True when the weights decay by the gradient."""
        return self.weight_decay != 0 and not self.adam_w_mode

    def corrections(self, step: float) -> tuple[float, float]:
        """The factor of ``m`` and the factor of ``eps``."""
        if not self.do_bias_correction:
            return 1.0, 1.0
        beta1, beta2 = self.betas
        root2 = (1 - beta2**step) ** 0.5
        return root2 / (1 - beta1**step), root2


def lamb(
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    exp_avgs: Sequence[torch.Tensor],
    exp_avg_sqs: Sequence[torch.Tensor],
    steps: Sequence[torch.Tensor],
    settings: Settings,
) -> None:
    """Run one step of LAMB in place, one tensor at a time. The formulas are those of `LAMB`.

    Both corrections are taken out of the elementwise part: ``r`` is
    ``root2 / (1 - beta1^t) m / (sqrt(v) + eps root2)`` with ``root2 = sqrt(1 - beta2^t)``.
    """
    beta1, beta2 = settings.betas
    for param, grad, exp_avg, exp_avg_sq, step in zip(
        params, grads, exp_avgs, exp_avg_sqs, steps, strict=True
    ):
        step += 1
        scale, root2 = settings.corrections(step.item())
        if settings.maximize:
            grad = -grad
        if settings.in_gradient:
            grad = grad.add(param, alpha=settings.weight_decay)
        exp_avg.lerp_(grad, 1 - beta1)
        exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)

        dtype = _wide(param.dtype)
        root = exp_avg_sq.to(dtype).sqrt().add_(settings.eps * root2)
        if settings.decoupled and settings.decay_in_trust_ratio:
            update = param.to(dtype).mul(settings.weight_decay)
            update.addcdiv_(exp_avg.to(dtype), root, value=scale)
        else:
            update = exp_avg.to(dtype).mul(scale).div_(root)
        ratio = _trust_ratio(_norm(param.to(dtype)), _norm(update))
        if settings.decoupled and not settings.decay_in_trust_ratio:
            update.add_(param, alpha=settings.weight_decay)
        param.addcmul_(update, ratio, value=-settings.lr)


def foreach_lamb(
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    exp_avgs: Sequence[torch.Tensor],
    exp_avg_sqs: Sequence[torch.Tensor],
    steps: Sequence[torch.Tensor],
    settings: Settings,
) -> None:
    """`lamb` with one op over all tensors, which share device and dtype."""
    beta1, beta2 = settings.betas
    many.add_(steps, 1)
    corrections = [settings.corrections(step.item()) for step in steps]
    scales = [scale for scale, _ in corrections]
    if settings.maximize:
        grads = many.neg(grads)
    if settings.in_gradient:
        grads = many.add(grads, params, alpha=settings.weight_decay)
    many.lerp_(exp_avgs, grads, 1 - beta1)
    many.mul_(exp_avg_sqs, beta2)
    many.addcmul_(exp_avg_sqs, grads, grads, 1 - beta2)

    dtype = _wide(params[0].dtype)
    roots = many.sqrt([exp_avg_sq.to(dtype) for exp_avg_sq in exp_avg_sqs])
    many.add_(roots, [settings.eps * root2 for _, root2 in corrections])
    first = [exp_avg.to(dtype) for exp_avg in exp_avgs]
    old = [param.to(dtype) for param in params]
    if settings.decoupled and settings.decay_in_trust_ratio:
        updates = many.mul(old, settings.weight_decay)
        many.addcdiv_(updates, first, roots, scales)
    else:
        updates = many.mul(first, scales)
        many.div_(updates, roots)
    ratios = _ratios(old, updates)
    if settings.decoupled and not settings.decay_in_trust_ratio:
        many.add_(updates, old, alpha=settings.weight_decay)
    for param, update, ratio in zip(params, updates, ratios, strict=True):
        param.addcmul_(update, ratio, value=-settings.lr)


def _norm(tensor: torch.Tensor) -> torch.Tensor:
    """The 2-norm. On the CPU vector_norm adds up in few float32 numbers, which loses small terms:
    0.0004 of the norm of ten million of them. `sum` adds in pairs.
    """
    if tensor.is_cpu and tensor.numel() >= _LARGE:
        return (tensor * tensor).sum().sqrt()
    norm: torch.Tensor = vector_norm(tensor)
    return norm


def _ratios(
    params: Sequence[torch.Tensor], updates: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    if params[0].is_cpu:
        pairs = zip(params, updates, strict=True)
        return [_trust_ratio(_norm(param), _norm(update)) for param, update in pairs]
    param_norms, update_norms = (torch.stack(list(many.norm(t))) for t in (params, updates))
    return _trust_ratio(param_norms, update_norms).unbind()


def _trust_ratio(param_norm: torch.Tensor, update_norm: torch.Tensor) -> torch.Tensor:
    both = (param_norm > 0) & (update_norm > 0)
    return torch.where(both, param_norm / update_norm, 1.0)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """16-bit numbers have too short a range for squares, and float16 too short a one for eps."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
