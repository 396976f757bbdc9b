"""Modules that torch's `fully_shard` has wrapped: what they gather together, and their hooks."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_FSDP = "torch.distributed.fsdp"
_HANDLES = ("_pre_forward_hook_handle", "_post_forward_hook_handle")


def reshard(modules: Iterable[Any]) -> None:
    """Let each of these wrapped modules hold its parts."""
    for module in modules:
        module.reshard()


@dataclass(frozen=True)
class Together:
    """Parameters that `fully_shard` gathers together, each a DTensor."""

    parameters: Sequence[torch.Tensor]
    _held: Any

    @property
    def mesh(self) -> Any:
        """The mesh over which they lie."""
        return self._held.mesh_info.mesh

    @property
    def frees(self) -> bool:
        """True where the forward gives back what it gathers, and the backward gathers it again."""
        return self._held.post_forward_mesh_info is not None

    @property
    def syncs(self) -> bool:
        """False after ``set_requires_gradient_sync(False)``."""
        return bool(self._held.reduce_grads)

    def why_not(self) -> str:
        """What was asked of `fully_shard` that nobody else can do; empty for nothing."""
        held = self._held
        policy = held.mp_policy
        if self.mesh.ndim != 1:
            return f"over a mesh of {self.mesh.ndim} dimensions"
        if any((policy.param_dtype, policy.reduce_dtype, policy.output_dtype)):
            return "with a mixed precision policy"
        if getattr(held.offload_policy, "pin_memory", None) is not None:
            return "with an offload policy"
        if getattr(held, "gradient_divide_factor", None) is not None:
            return "with a gradient divide factor"
        return ""


def wrapped(modules: Iterable[nn.Module]) -> list[Any]:
    """Those among ``modules`` that `fully_shard` was called on."""
    loaded = sys.modules.get(_FSDP)
    if loaded is None:
        return []
    return [module for module in modules if isinstance(module, loaded.FSDPModule)]


def groups_of(modules: Iterable[Any]) -> list[Together]:
    """What each of these wrapped modules gathers, in their order."""
    found = []
    for module in modules:
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None)
        for held in [state._fsdp_param_group] if groups is None else groups:
            if held is not None:
                found.append(Together([p.sharded_param for p in held.fsdp_params], held))
    return found


def sync(modules: Iterable[Any]) -> bool:
    """False where ``set_requires_gradient_sync(False)`` was called on all of these modules."""
    held = [group.syncs for group in groups_of(modules)]
    return any(held) or not held


@contextmanager
def hooks_at_rest(modules: Sequence[Any]) -> Iterator[None]:
    """In the block, these wrapped modules run without the hooks of `fully_shard`."""
    kept: list[tuple[OrderedDict[int, Any], OrderedDict[int, Any]]] = []
    for module in modules:
        state = module._get_fsdp_state()
        own = {handle.id for name in _HANDLES if (handle := getattr(state, name, None))}
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            kept.append((hooks, OrderedDict(hooks)))
            for number in own & hooks.keys():
                del hooks[number]
    try:
        yield
    finally:
        for hooks, before in kept:
            hooks.clear()
            hooks.update(before)
