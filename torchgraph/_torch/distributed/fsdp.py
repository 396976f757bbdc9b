"""Modules that torch's `fully_shard` has wrapped: what they gather together, and their hooks."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from .. import pytree

_FSDP = "torch.distributed.fsdp"
_HANDLES = ("_pre_forward_hook_handle", "_post_forward_hook_handle")


def reshard(modules: Iterable[Any]) -> None:
    """Let each of these wrapped modules hold its parts."""
    for module in modules:
        module.reshard()


@dataclass(frozen=True)
class Sharded:
    """A parameter that `fully_shard` has cut."""

    parameter: torch.Tensor
    """A DTensor."""
    shape: torch.Size
    """The shape of what is gathered."""
    dim: int
    """Along which it is cut."""
    inner: Any
    """The layout of the gathered value over another mesh, as `layout_of` gives it; else None."""


@dataclass(frozen=True)
class Together:
    """Parameters that `fully_shard` gathers together."""

    parameters: Sequence[Sharded]
    _held: Any

    @property
    def groups(self) -> tuple[Any, Any]:
        """The process group that shards the parameters, and that of the ranks with equal shards.

        None in place of the second where there is no other such rank.
        """
        info = self._held.mesh_info
        return info.shard_process_group, getattr(info, "replicate_process_group", None)

    @property
    def precision(self) -> tuple[torch.dtype | None, torch.dtype | None]:
        """The dtypes of computation and of gradient reduction; None: unchanged."""
        policy = self._held.mp_policy
        return policy.param_dtype, policy.reduce_dtype

    @property
    def divisor(self) -> float | None:
        """The divisor of gradient sums; None: the number of ranks."""
        found: float | None = getattr(self._held, "gradient_divide_factor", None)
        return found

    @property
    def frees(self) -> bool:
        """True where the forward gives back what it gathers, and the backward gathers it again."""
        return self._held.post_forward_mesh_info is not None

    @property
    def syncs(self) -> bool:
        """False after ``set_requires_gradient_sync(False)``."""
        return bool(self._held.reduce_grads)

    def why_not(self) -> str:
        """The option of `fully_shard` that is not supported; empty for none."""
        if getattr(self._held.offload_policy, "pin_memory", None) is not None:
            return "with an offload policy"
        if not hasattr(self._held.mesh_info, "shard_process_group"):
            return "without a dimension along which parameters are cut"
        return ""


def wrapped(modules: Iterable[nn.Module]) -> list[Any]:
    """The modules that `fully_shard` was called on."""
    loaded = sys.modules.get(_FSDP)
    if loaded is None:
        return []
    return [module for module in modules if isinstance(module, loaded.FSDPModule)]


def groups_of(modules: Iterable[Any]) -> list[Together]:
    """The parameter groups of these wrapped modules, in their order."""
    found = []
    for module in modules:
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None)
        for held in [state._fsdp_param_group] if groups is None else groups:
            if held is not None:
                found.append(Together([_sharded(p) for p in held.fsdp_params], held))
    return found


def _sharded(held: Any) -> Sharded:
    inner = getattr(held, "_unsharded_dtensor_spec", None) or getattr(held, "_tp_spec", None)
    return Sharded(held.sharded_param, held._orig_size, held.fsdp_placement.dim, inner)


def sync(modules: Iterable[Any]) -> bool:
    """False where ``set_requires_gradient_sync(False)`` was called on all of these modules."""
    held = [group.syncs for group in groups_of(modules)]
    return any(held) or not held


@contextmanager
def hooks_at_rest(modules: Sequence[Any]) -> Iterator[None]:
    """In the block, the hooks of `fully_shard` do nothing but cast inputs and outputs."""
    kept: list[tuple[OrderedDict[int, Any], OrderedDict[int, Any]]] = []
    for module in modules:
        state = module._get_fsdp_state()
        policy = state._mp_policy
        given = policy.param_dtype if policy.cast_forward_inputs else None
        casts = (partial(_cast_inputs, given), partial(_cast_output, policy.output_dtype))
        own = {number for name in _HANDLES for number in _numbers(getattr(state, name))}
        for hooks, cast in zip(
            (module._forward_pre_hooks, module._forward_hooks), casts, strict=True
        ):
            kept.append((hooks, OrderedDict(hooks)))
            hooks.update(dict.fromkeys(own & hooks.keys(), cast))
    try:
        yield
    finally:
        for hooks, before in kept:
            hooks.clear()
            hooks.update(before)


def _numbers(handle: Any) -> list[int]:
    """The ids of a hook's handle, or of the handles of modules that were wrapped together."""
    return [one.id for one in getattr(handle, "handles", (handle,))]


def _cast_inputs(dtype: Any, _: nn.Module, args: Any, kwargs: Any) -> Any:
    return _cast(dtype, args), _cast(dtype, kwargs)


def _cast_output(dtype: Any, _: nn.Module, __: Any, output: Any) -> Any:
    return _cast(dtype, output)


def _cast(dtype: torch.dtype | None, value: Any) -> Any:
    if not dtype:
        return value
    return pytree.tree_map_only(
        torch.Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, value
    )
