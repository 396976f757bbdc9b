"""Which parameters of a step are averaged over ranks, and when its backward passes do it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .._torch import engine_watch
from ..distributed.errors import NotAveraged
from ..distributed.replicas import ReplicaGroup, Replicas
from ..ir.program import Role
from ..options.options import Options
from .step import Step


def groups_of(step: Step, options: Options) -> list[ReplicaGroup]:
    """The groups of a step's parameters."""
    parallel = options.data_parallel
    if parallel is None:
        return []
    tensors = [leaf for _, leaf in step.tensors()]
    parameters = {
        str(leaf.fqn): leaf.value
        for leaf in tensors
        if leaf.role is Role.PARAMETER and leaf.value.requires_grad
    }
    buffers = [leaf.value for leaf in tensors if leaf.role is Role.BUFFER]
    return [ReplicaGroup(parallel, parameters, buffers)]


@contextmanager
def averaging(replicas: Replicas, step: Step) -> Iterator[None]:
    """In the block, backward passes of a step that updates by itself average what they leave.

    Raises:
        NotAveraged: an optimizer updates parameters that nobody averages.
    """
    known = {id(p) for group in replicas.groups for p in group.parameters.values()}
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
        replicas.average_since(marks)

    def check(optimizer: Optimizer, *_: object) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and id(parameter) not in known:
                    shape = tuple(parameter.shape)
                    raise NotAveraged(
                        f"{type(optimizer).__name__} updates a parameter of shape {shape}, whose "
                        "gradient is averaged over no ranks: the step does not name it."
                    )

    if not replicas.groups:
        yield
        return
    hook = register_optimizer_step_pre_hook(check)
    try:
        with engine_watch(lambda roots: None, lambda: None, around):
            yield
    finally:
        hook.remove()
