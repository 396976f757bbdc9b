"""The return values of a step: detached, in memory that is not written later."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from .._torch import storage_id
from .._torch.distributed.held import layout_of
from ..ir.aliasing import class_of
from ..ir.program import OutputKind, OutputSpec
from .ops.recorder import Recorder
from .tape.number import node_of


def apart(
    returned: Iterable[torch.Tensor],
    recorder: Recorder | None,
    owned: Iterable[torch.Tensor],
    is_late: Callable[[torch.Tensor], bool],
) -> list[torch.Tensor]:
    """The returned tensors, detached and in own memory; symbolic numbers as they are.

    Args:
        recorder: None where the step was not written down.
        owned: in whose memory no returned tensor may lie: states, arguments, gradients.
        is_late: True for a gradient that is read when it is final.
    """
    memory = set(map(storage_id, owned))
    found: list[torch.Tensor] = []
    for tensor in returned:
        if node_of(tensor) is not None or is_late(tensor):
            found.append(tensor)
            continue
        value = tensor.detach()
        known = recorder is not None and recorder.memory.find(value) in recorder.tape.constants
        if (value.layout is torch.strided and storage_id(value) in memory) or known:
            value = value.clone()
        found.append(value)
    return found


def output_of(name: str, value: object) -> OutputSpec:
    """The `OutputSpec` of a tensor or symbolic number."""
    if not isinstance(value, torch.Tensor):
        return OutputSpec(OutputKind.USER, name)
    return OutputSpec(OutputKind.USER, name, layout_of(value), class_of(value))


def result_of(value: Any) -> Any:
    """The value that a program returns for it."""
    node = node_of(value)
    return value.detach() if node is None else node.value
