"""The test for binding a program to a state other than the one it was recorded with."""

from __future__ import annotations

from dataclasses import replace

import torch

from .._torch.distributed.held import layout_of
from ..capture.program_of import Captured
from ..distributed.remote_states import is_remote
from ..ir.program import InputSpec, Role, TensorMeta
from ..live.step import Leaf


def fits(spec: InputSpec, leaf: Leaf, found: Leaf, captured: Captured) -> bool:
    """True where the program can be bound to ``found`` instead of ``leaf``."""
    if leaf.role is not found.role:
        return False
    if not isinstance(found.value, torch.Tensor):
        return spec.meta is None and type(leaf.value) is type(found.value)
    # Of a step that takes its own update, gradients are put into the tensors that were recorded.
    if captured.own_update and leaf.role is Role.PARAMETER and found.value is not leaf.value:
        return False
    # The meta of the capture: the leaf's own tensor may have changed since.
    meta, layout = TensorMeta.of(found.value), layout_of(found.value)
    if is_remote(found.value) and spec.meta is not None:  # another rank of the pipeline has it
        meta = replace(meta, stride=spec.meta.stride)
    return spec.meta == meta and spec.layout == layout
