"""Reference implementations of the update ops in ATen, which the compiled kernels must match.

Arithmetic is in float32 for low precision, else in the parameter's dtype. A plain update by a rule
that torch has as a fused kernel runs that kernel: the last bit is that of ``fused=True``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from ...._torch import FUSED_KERNELS
from .checks import UpdateOptions
from .overlap import dense

Tensor = torch.Tensor
State = dict[str, Tensor]
Numbers = dict[str, Tensor]
"""Tensors of no dimensions, in float64; also the grad_scale and kin that are given."""
Flags = set[str]
"""The flags that are on."""
UpdateFunction = Callable[[Tensor, Tensor, State, Numbers, Flags], Tensor]
"""Returns the new parameter and puts the new state into the dict."""


def sgd(p: Tensor, g: Tensor, state: State, n: Numbers, on: Flags) -> Tensor:
    """torch.optim.SGD."""
    g = _plus(g, n["weight_decay"], p)
    if "momentum_buffers" in state:
        old = state["momentum_buffers"]
        momentum, used = n["momentum"], n["momentum"] != 0
        new = g if "is_first_step" in on else old * momentum + g * (1 - n["dampening"])
        state["momentum_buffers"] = torch.where(used, new, old)
        g = torch.where(used, g + new * momentum if "nesterov" in on else new, g)
    return p - g * n["lr"]


def adam(p: Tensor, g: Tensor, state: State, n: Numbers, on: Flags) -> Tensor:
    """torch.optim.Adam; ``decoupled``: AdamW."""
    decay = n["weight_decay"]
    if "decoupled" in on:
        p = p * (1 - n["lr"] * decay)
    else:
        g = _plus(g, decay, p)
    first = state["exp_avgs"] = torch.lerp(state["exp_avgs"], g, 1 - n["beta1"])
    second = state["exp_avg_sqs"] = state["exp_avg_sqs"] * n["beta2"] + (1 - n["beta2"]) * g * g
    if "amsgrad" in on:
        second = state["max_exp_avg_sqs"] = torch.maximum(state["max_exp_avg_sqs"], second)
    step_size = n["lr"] / (1 - n["beta1"] ** state["steps"])
    root = torch.sqrt(1 - n["beta2"] ** state["steps"])
    return p - step_size * first / (second.sqrt() / root + n["eps"])


def rmsprop(p: Tensor, g: Tensor, state: State, n: Numbers, on: Flags) -> Tensor:
    """torch.optim.RMSprop."""
    g = _plus(g, n["weight_decay"], p)
    square = state["square_avgs"] = state["square_avgs"] * n["alpha"] + (1 - n["alpha"]) * g * g
    if "centered" in on:
        mean = state["grad_avgs"] = torch.lerp(state["grad_avgs"], g, 1 - n["alpha"])
        square = square - mean * mean
    change = g / (square.sqrt() + n["eps"])
    if "momentum_buffers" in state:
        old, used = state["momentum_buffers"], n["momentum"] > 0
        new = old * n["momentum"] + change
        state["momentum_buffers"] = torch.where(used, new, old)
        change = torch.where(used, new, change)
    return p - n["lr"] * change


def adagrad(p: Tensor, g: Tensor, state: State, n: Numbers, on: Flags) -> Tensor:
    """torch.optim.Adagrad."""
    g = _plus(g, n["weight_decay"], p)
    total = state["state_sums"] = state["state_sums"] + g * g
    rate = n["lr"] / (1 + (state["steps"] - 1) * n["lr_decay"])
    return p - rate * g / (total.sqrt() + n["eps"])


def adadelta(p: Tensor, g: Tensor, state: State, n: Numbers, on: Flags) -> Tensor:
    """torch.optim.Adadelta."""
    g = _plus(g, n["weight_decay"], p)
    rho, eps, old = n["rho"], n["eps"], state["acc_deltas"]
    square = state["square_avgs"] = state["square_avgs"] * rho + (1 - rho) * g * g
    change = (old + eps).sqrt() / (square + eps).sqrt() * g
    state["acc_deltas"] = old * rho + (1 - rho) * change * change
    return p - n["lr"] * change


def lamb(p: Tensor, g: Tensor, state: State, n: Numbers, on: Flags) -> Tensor:
    """torchgraph.optim.LAMB, the norms in the arithmetic's dtype."""
    decay = n["weight_decay"]
    if "decoupled" not in on:
        g = _plus(g, decay, p)
    first = state["exp_avgs"] = torch.lerp(state["exp_avgs"], g, 1 - n["beta1"])
    second = state["exp_avg_sqs"] = state["exp_avg_sqs"] * n["beta2"] + (1 - n["beta2"]) * g * g
    root2 = scale = torch.ones_like(decay)
    if "bias_correction" in on:
        root2 = torch.sqrt(1 - n["beta2"] ** state["steps"])
        scale = root2 / (1 - n["beta1"] ** state["steps"])
    change = scale * first / (second.sqrt() + n["eps"] * root2)
    decayed = _plus(change, decay, p) if "decoupled" in on else change
    measured = decayed if "decay_in_trust_ratio" in on else change
    size, length = torch.linalg.vector_norm(p), torch.linalg.vector_norm(measured)
    ratio = torch.where((size > 0) & (length > 0), size / length, 1.0)
    return p - n["lr"] * decayed * ratio


def lion(p: Tensor, g: Tensor, state: State, n: Numbers, on: Flags) -> Tensor:
    """torchgraph.optim.Lion."""
    old = state["exp_avgs"]
    change = torch.sign(torch.lerp(old, g, 1 - n["beta1"]))
    state["exp_avgs"] = torch.lerp(old, g, 1 - n["beta2"])
    return p * (1 - n["lr"] * n["weight_decay"]) - n["lr"] * change


REFERENCES: dict[str, UpdateFunction] = {
    "sgd": sgd,
    "adam": adam,
    "rmsprop": rmsprop,
    "adagrad": adagrad,
    "adadelta": adadelta,
    "lamb": lamb,
    "lion": lion,
}


def compute(name: str, lists: dict[str, list[Tensor]], options: UpdateOptions) -> None:
    """Write the update by a rule of this file."""
    fused = _fused(name, lists, options)
    for i in range(len(lists["params"])):
        if i in fused:
            continue
        own = {each: tensors[i] for each, tensors in lists.items() if tensors}
        _write(REFERENCES[name], own, options)


def _write(rule: UpdateFunction, own: dict[str, Tensor], options: UpdateOptions) -> None:
    param = own["params"]
    wide = torch.float64 if param.dtype == torch.float64 else torch.float32
    on = {name for name, value in options.items() if value is True}
    n: Numbers = {
        name: torch.as_tensor(value, dtype=torch.float64, device=param.device).reshape(())
        for name, value in options.items()
        if value is not None and not isinstance(value, bool)
    }
    # A dimension keeps the numbers, which are float64 and have none, from widening the elements.
    p = param.to(wide).reshape(-1)
    grad = _gradient(own["grads"].to(wide).reshape(-1), p, n, on)
    apart = ("params", "grads", "steps", "copies")
    states = {name: tensor for name, tensor in own.items() if name not in apart}
    state = {name: tensor.to(wide).reshape(-1) for name, tensor in states.items()}
    if "steps" in own:
        state["steps"] = own["steps"].to(torch.float64).reshape(()) + 1
    new = {"params": rule(p, grad, state, n, on).to(param.dtype), **state}
    if "copies" in own:
        new["copies"] = new["params"]
    for name, value in new.items():
        kept = own[name]
        value = value.to(kept.dtype).reshape(kept.shape)
        kept.copy_(torch.where(n["found_inf"] != 0, kept, value) if "found_inf" in n else value)


def _gradient(g: Tensor, p: Tensor, n: Numbers, on: Flags) -> Tensor:
    """The gradient unscaled, clipped, negated to maximize, with its L1 part."""
    if "grad_scale" in n:
        g = g / n["grad_scale"]
    if "clip_coef" in n:
        g = g * n["clip_coef"]
    if "maximize" in on:
        g = -g
    return _plus(g, n["l1"], torch.sign(p)) if "l1" in n else g


def _plus(value: Tensor, factor: Tensor, term: Tensor) -> Tensor:
    """A factor of zero adds nothing, not even the NaN of an infinite term."""
    return torch.where(factor != 0, value + factor * term, value)


def _fused(rule: str, lists: dict[str, list[Tensor]], options: UpdateOptions) -> set[int]:
    """Run torch's fused kernel where it computes just this; the places that it has updated."""
    tensors = any(isinstance(value, Tensor) for value in options.values())
    if rule not in _FUSED or tensors or options["l1"]:
        return set()
    done: set[int] = set()
    by_dtype: dict[torch.dtype, list[int]] = {}
    for i, param in enumerate(lists["params"]):
        walked = [lists[each] for each in lists if each not in ("steps", "copies") and lists[each]]
        inexact = rule in ("sgd", "adagrad") and param.dtype.itemsize == 2
        if not (inexact and not _half_is_sound()) and _walkable(
            param, [tensors[i] for tensors in walked]
        ):
            by_dtype.setdefault(param.dtype, []).append(i)
    for places in by_dtype.values():
        own = {name: [tensors[i] for i in places if tensors] for name, tensors in lists.items()}
        if own.get("steps"):
            for step in own["steps"]:
                step += 1
        _FUSED[rule](own, options)
        for copy, param in zip(own["copies"], own["params"], strict=False):
            copy.copy_(param)
        done.update(places)
    return done


@functools.cache
def _half_is_sound() -> bool:
    """False where torch's fused SGD in half precision leaves most parameters as they are.

    Before torch 2.15 it does, on the CPU, and Adagrad's rounds the numbers to half precision.
    """
    param, grad = torch.zeros(64, dtype=torch.bfloat16), torch.ones(64, dtype=torch.bfloat16)
    lists = {"params": [param], "grads": [grad], "momentum_buffers": []}
    zero = dict.fromkeys(("weight_decay", "momentum", "dampening"), 0.0)
    off = dict.fromkeys(("nesterov", "maximize", "is_first_step"), False)
    _fused_sgd(lists, {"lr": 1.0, **zero, **off})
    return bool((param == -1).all())


def _walkable(param: Tensor, own: list[Tensor]) -> bool:
    """True when one walk over the memory of all meets equal elements: torch's kernels do so."""
    return (
        param.device.type in ("cpu", "cuda")
        and dense(param)
        and all(tensor.stride() == param.stride() for tensor in own)
        and own[1].dtype == param.dtype
    )


def _fused_sgd(own: dict[str, list[Tensor]], n: UpdateOptions) -> None:
    names = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize", "is_first_step")
    buffers = own["momentum_buffers"] if n["momentum"] else []
    kernel = FUSED_KERNELS["_fused_sgd_"]
    kernel(own["params"], own["grads"], buffers, **{name: n[name] for name in names})


def _fused_adam(own: dict[str, list[Tensor]], n: UpdateOptions) -> None:
    names = ("lr", "beta1", "beta2", "weight_decay", "eps", "amsgrad", "maximize")
    lists = ("params", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "steps")
    own = own if n["amsgrad"] else {**own, "max_exp_avg_sqs": []}
    kernel = FUSED_KERNELS["_fused_adamw_" if n["decoupled"] else "_fused_adam_"]
    kernel(*(own[name] for name in lists), **{name: n[name] for name in names})


def _fused_adagrad(own: dict[str, list[Tensor]], n: UpdateOptions) -> None:
    names = ("lr", "lr_decay", "weight_decay", "eps", "maximize")
    lists = ("params", "grads", "state_sums", "steps")
    kernel = FUSED_KERNELS["_fused_adagrad_"]
    kernel(*(own[name] for name in lists), **{name: n[name] for name in names})


_FUSED = {"sgd": _fused_sgd, "adam": _fused_adam, "adagrad": _fused_adagrad}
