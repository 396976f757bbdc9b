"""Averaging of a step's gradients over ranks in its backward passes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .._torch import engine_watch
from .._torch.distributed import ddp
from .._torch.names import patched
from ..distributed import batch_norm
from ..distributed.errors import NotAveraged
from ..distributed.parallel import DataParallel
from ..distributed.reducer import spread
from ..distributed.replicas import ReplicaGroup, Replicas
from ..errors import NotSupported
from ..guards.classes import stands_in
from ..ir.program import Role
from ..options.options import Options
from ..structure.nested import map_nested
from .step import Step


def groups_of(step: Step, options: Options) -> list[ReplicaGroup]:
    """The groups of a step's parameters: those of each DDP module, and all others."""
    found: list[ReplicaGroup] = []
    taken: set[int] = set()
    for module in ddp.inside(iter(step.modules.values())):
        held = {str(step.parameter_fqn(p)): p for p in ddp.parameters_of(module)}
        found.append(_of_ddp(module, held, step.replicas))
        taken.update(map(id, module.parameters()))
        taken.update(map(id, module.buffers()))
    parallel = options.data_parallel
    if parallel is None:
        return found
    if step.lazy:
        raise NotSupported(
            "Data parallel: a lazy module has no parameters yet, and each rank would draw its own.",
            fix="run the model once before the Graph's first call.",
        )
    tensors = [leaf for _, leaf in step.tensors() if id(leaf.value) not in taken]
    parameters = {
        str(leaf.fqn): leaf.value
        for leaf in tensors
        if leaf.role is Role.PARAMETER
        if leaf.value.requires_grad and not step.replicas.covers(leaf.value)
    }
    buffers = [leaf.value for leaf in tensors if leaf.role is Role.BUFFER]
    return [*found, ReplicaGroup(parallel, parameters, buffers)]


def _of_ddp(
    module: DistributedDataParallel, parameters: dict[str, torch.Tensor], replicas: Replicas
) -> ReplicaGroup:
    group, number = module.process_group, id(module)
    parallel = DataParallel(group.group_name, group.size(), ddp.bucket_bytes_of(module), False)
    return ReplicaGroup(parallel, parameters, (), lambda: number in replicas.armed, starts=False)


@contextmanager
def running(step: Step, *, updates_itself: bool, early: bool) -> Iterator[None]:
    """In the block a call of ``step`` runs, whose DDP modules leave communication to us.

    Args:
        updates_itself: optimizers step in the block.
        early: what a backward pass leaves is averaged at once, and not where the update begins.

    Raises:
        NotAveraged: an optimizer updates parameters that nobody averages.
        NotSupported: a DDP module has a hook of its own.
    """
    replicas, modules = step.replicas, list(step.modules.values())
    with ExitStack() as stack:
        if held := ddp.inside(iter(modules)):
            stack.callback(lambda: list(map(ddp.renew, held)))
            made = _ddp_forward(replicas, {id(module) for module in modules})
            stack.enter_context(_forward_as(DistributedDataParallel, made))
        normed = any(isinstance(module, nn.SyncBatchNorm) for module in modules)
        if normed and batch_norm.may_sync():
            stack.enter_context(_forward_as(nn.SyncBatchNorm, batch_norm.forward))
        if replicas.shards is not None:
            stack.enter_context(replicas.shards.step())
        trains = bool(replicas.groups) or replicas.shards is not None
        replicas.late = trains and not (updates_itself or early)
        if trains and not replicas.late:
            stack.enter_context(_averaging(replicas, keep=updates_itself))
        yield


@contextmanager
def _forward_as(cls: type[nn.Module], made: Callable[..., object]) -> Iterator[None]:
    """In the block, this thread's calls of modules of ``cls`` run ``made``."""
    original, here = cls.forward, threading.get_ident()

    def forward(module: nn.Module, *args: object, **kwargs: object) -> object:
        if threading.get_ident() != here:
            return original(module, *args, **kwargs)
        return made(module, *args, **kwargs)

    with patched(cls, "forward", stands_in(forward, cls, "forward")):
        yield


def _ddp_forward(replicas: Replicas, own: set[int]) -> Callable[..., object]:
    """DDP's forward without its reducer, whose hooks are then inactive."""
    original: Callable[..., object] = DistributedDataParallel.forward

    def forward(module: DistributedDataParallel, *args: Any, **kwargs: Any) -> object:
        if id(module) not in own:
            return original(module, *args, **kwargs)
        if what := ddp.why_not(module):
            raise NotSupported(
                f"A DistributedDataParallel with {what} is in the step, and its gradients are "
                "averaged without it.",
                fix="leave it out, or train this module without a Graph.",
            )
        syncs = torch.is_grad_enabled() and module.require_backward_grad_sync
        if module.will_sync_module_buffers():
            spread(ddp.buffers_of(module), module.process_group.group_name)
        if module.device_ids:
            device = torch.device(module.device_type, module.device_ids[0])
            args, kwargs = map_nested((args, kwargs), torch.Tensor, lambda t: t.to(device))
        output: object = module.module(*args, **kwargs)
        module.require_forward_param_sync = syncs
        if syncs:
            replicas.armed.add(id(module))
        return output

    return forward


@contextmanager
def _averaging(replicas: Replicas, *, keep: bool) -> Iterator[None]:
    """Backward passes average what they leave; steps of optimizers check that they did.

    ``keep``: in the memory of the gradients.
    """
    known = {id(p) for group in replicas.groups for p in group.parameters.values()}
    complete = any(group.starts for group in replicas.groups)
    """False where DDP alone averages: parameters outside of it are not, as in eager."""
    running = False

    @contextmanager
    def around(*, accumulates: bool) -> Iterator[None]:
        nonlocal running
        if running or not accumulates:  # a checkpoint's backward runs inside another
            yield
            return
        running, marks = True, replicas.marks()
        try:
            yield
        finally:
            running = False
        replicas.average_since(marks, keep=keep)

    def check(optimizer: Optimizer, *_: object) -> None:
        if complete and running:
            raise NotAveraged(
                f"{type(optimizer).__name__} steps inside of a backward, before its gradients are "
                "averaged over the ranks.",
                fix="let it step behind backward().",
            )
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                held = id(parameter) in known or replicas.covers(parameter)
                if complete and parameter.grad is not None and not held:
                    shape = tuple(parameter.shape)
                    raise NotAveraged(
                        f"{type(optimizer).__name__} updates a parameter of shape {shape}, whose "
                        "gradient is averaged over no ranks: the step does not name it."
                    )

    hook = register_optimizer_step_pre_hook(check)
    try:
        with engine_watch(lambda roots: None, lambda: None, around):
            yield
    finally:
        hook.remove()
