"""Arguments of the update ops, and what they must give: torch.optim's step in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchgraph.optim import LAMB, Lion
from torchgraph.passes.fusions.model_update import op as update
from torchgraph.passes.fusions.model_update.reference import compute

Tensor = torch.Tensor
NUMBERS = {
    "lr": 0.0123,
    "beta1": 0.87,
    "beta2": 0.984,
    "eps": 1e-6,
    "weight_decay": 0.0345,
    "momentum": 0.91,
    "dampening": 0.12,
    "alpha": 0.977,
    "rho": 0.89,
    "lr_decay": 0.0321,
}
SQUARES = ("exp_avg_sqs", "max_exp_avg_sqs", "square_avgs", "state_sums", "acc_deltas")
RULES = tuple(update.RULES)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Case:
    """One call."""

    rule: str
    lists: dict[str, list[Tensor]]
    options: dict[str, Any]

    def copy(self) -> Case:
        """With tensors of its own, of the same strides and storage offsets."""
        lists = {name: [like(t) for t in tensors] for name, tensors in self.lists.items()}
        return replace(self, lists=lists)

    def run(self, *, compiled: bool = True, device_numbers: bool = False) -> Case:
        """A copy after the update, by the op or by its reference."""
        done = self.copy()
        if not compiled:
            compute(self.rule, done.lists, self.all_options())
        elif device_numbers:
            op = update.writing(self.rule, device=True)
            op(*done.lists.values(), **self.options_as_tensors())
        else:
            update.writing(self.rule)(*done.lists.values(), **self.options)
        return done

    def options_as_tensors(self) -> dict[str, Any]:
        """The options of the overload that takes tensors."""
        return {
            name: torch.tensor(value, dtype=torch.float64) if type(value) is float else value
            for name, value in self.options.items()
        }

    def all_options(self) -> dict[str, Any]:
        """With the schema's defaults."""
        arguments = update.writing(self.rule)._schema.arguments
        defaults = {a.name: a.default_value for a in arguments if a.kwarg_only}
        return {**defaults, **self.options}


def equal(left: Tensor, right: Tensor) -> bool:
    """The same numbers; one NaN is like another."""
    same = (left == right) | (left.isnan() & right.isnan())
    return left.dtype == right.dtype and left.shape == right.shape and bool(same.all())


def like(tensor: Tensor) -> Tensor:
    """A copy as it lies in memory, gaps included."""
    if not tensor.numel() or 0 in tensor.stride():
        return tensor.clone()
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    memory = torch.empty(tensor.storage_offset() + last + 1, dtype=tensor.dtype)
    fresh = memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return fresh.copy_(tensor)


def moved_to(device: torch.device, value: Any) -> Any:
    """A tensor on a device, with the same strides; any other value as it is."""
    if not isinstance(value, Tensor):
        return value
    if not value.numel():
        return value.to(device)
    if 0 in value.stride():
        return value.flatten()[0].to(device).expand_as(value)
    memory = torch.empty(value.untyped_storage().size() // value.itemsize, dtype=value.dtype)
    fresh = memory.to(device).as_strided(value.shape, value.stride(), value.storage_offset())
    return fresh.copy_(value)


def laid_out(values: Tensor, layout: str) -> Tensor:
    """The same values, lying in memory in another way."""
    if layout == "expanded" and values.numel():
        return values.flatten()[0].expand(values.shape)
    if layout == "transposed" and values.ndim > 1:
        return values.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "gaps":
        return torch.stack([values, torch.full_like(values, 7.0)], dim=-1)[..., 0]
    if layout == "offset":
        return torch.cat([values.new_zeros(1), values.flatten()])[1:].view(values.shape)
    return values.contiguous()


def make(
    rule: str,
    shapes: Sequence[tuple[int, ...]],
    dtype: torch.dtype = torch.float32,
    *,
    grad_dtype: torch.dtype | None = None,
    copy_dtype: torch.dtype | None = None,
    layouts: dict[str, str] | None = None,
    without: Sequence[str] = (),
    seed: int = 0,
    **options: Any,
) -> Case:
    """A case with random contents. ``without``: state lists that are empty."""
    generator = torch.Generator().manual_seed(seed)
    layouts = layouts or {}
    facts = update.RULES[rule]

    def tensors(name: str, kind: torch.dtype) -> list[Tensor]:
        found = []
        for shape in shapes:
            values = torch.randn(shape, generator=generator, dtype=torch.float64)
            if name in SQUARES:
                values = values * values + 1.1  # above the square of a moment: there are roots
            elif name not in ("params", "grads"):
                values = values.clamp(-1, 1)
            found.append(laid_out(values.to(kind), layouts.get(name, "contiguous")))
        return found

    lists: dict[str, list[Tensor]] = {}
    for name in facts.lists:
        if name in without or (name == "copies" and copy_dtype is None):
            lists[name] = []
        elif name == "steps":
            lists[name] = [torch.tensor(float(3 * i)) for i in range(len(shapes))]
        elif name == "grads":
            lists[name] = tensors(name, grad_dtype or dtype)
        else:
            lists[name] = tensors(name, (copy_dtype if name == "copies" else None) or dtype)
    numbers = {name: NUMBERS[name] for name in facts.numbers}
    return Case(rule, lists, {**numbers, **options})


def expected(case: Case) -> dict[str, list[Tensor]]:
    """The lists after the update, in float64; copies left out."""
    options = case.all_options()
    found: dict[str, list[Tensor]] = {name: [] for name in case.lists}
    for i in range(len(case.lists["params"])):
        own = {name: tensors[i] for name, tensors in case.lists.items() if tensors}
        param = own["params"].double().clone().requires_grad_()
        param.grad = _prepared(own["grads"].double(), param.detach(), options)
        optimizer = _optimizer(case.rule, param, options)
        state = optimizer.state[param]
        for name, tensor in own.items():
            if name not in ("params", "grads", "copies"):
                state[_key(name)] = tensor.double().clone()
        if options.get("is_first_step") or options.get("momentum") == 0.0:
            state.pop("momentum_buffer", None)
        optimizer.step()
        found["params"].append(param.detach())
        for name, tensor in own.items():
            if name not in ("params", "grads", "copies"):
                found[name].append(state.get(_key(name), tensor).double().reshape(tensor.shape))
    return found


def _prepared(grad: Tensor, param: Tensor, options: dict[str, Any]) -> Tensor:
    for name, apply in (("grad_scale", torch.div), ("clip_coef", torch.mul)):
        if options[name] is not None:
            grad = apply(grad, options[name].double())
    if options["maximize"]:
        grad = -grad
    return grad + options["l1"] * torch.sign(param) if options["l1"] else grad


def _key(name: str) -> str:
    """Of a state list, in the optimizer's state."""
    return {"state_sums": "sum", "steps": "step"}.get(name, name.removesuffix("s"))


def _optimizer(rule: str, param: Tensor, o: dict[str, Any]) -> torch.optim.Optimizer:
    betas = {"betas": (o["beta1"], o["beta2"])} if "beta1" in o else {}
    same = {name: o[name] for name in ("lr", "eps", "weight_decay") if name in o}
    one: dict[str, Any] = {"foreach": False}
    if rule == "sgd":
        more = {name: o[name] for name in ("momentum", "dampening", "nesterov")}
        return torch.optim.SGD([param], **same, **more, **one)
    if rule == "adam":
        kind = torch.optim.AdamW if o["decoupled"] else torch.optim.Adam
        return kind([param], **same, **betas, amsgrad=o["amsgrad"], **one)
    if rule == "rmsprop":
        more = {name: o[name] for name in ("alpha", "momentum", "centered")}
        return torch.optim.RMSprop([param], **same, **more, **one)
    if rule == "adagrad":
        optimizer = torch.optim.Adagrad([param], **same, lr_decay=o["lr_decay"], **one)
        optimizer.state[param].clear()
        return optimizer
    if rule == "adadelta":
        return torch.optim.Adadelta([param], **same, rho=o["rho"], **one)
    if rule == "lion":
        return Lion([param], **same, **betas)
    return LAMB(
        [param],
        **same,
        **betas,
        adam_w_mode=o["decoupled"],
        do_bias_correction=o["bias_correction"],
        decay_in_trust_ratio=o["decay_in_trust_ratio"],
    )
