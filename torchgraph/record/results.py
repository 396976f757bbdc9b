"""What a step returns: detached, and never memory that is written later."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from .._torch import storage_id
from .ops.recorder import Recorder


def apart(
    returned: Iterable[torch.Tensor],
    recorder: Recorder | None,
    owned: Iterable[torch.Tensor],
    is_late: Callable[[torch.Tensor], bool],
) -> list[torch.Tensor]:
    """The tensors that a step returned, detached.

    Args:
        recorder: None where the step was not written down.
        owned: in whose memory no returned tensor may lie: states, arguments, gradients.
        is_late: True for a gradient that is read when it is final.
    """
    memory = set(map(storage_id, owned))
    found: list[torch.Tensor] = []
    for tensor in returned:
        if is_late(tensor):
            found.append(tensor)
            continue
        value = tensor.detach()
        known = recorder is not None and recorder.memory.find(value) in recorder.tape.constants
        if (value.layout is torch.strided and storage_id(value) in memory) or known:
            value = value.clone()
        found.append(value)
    return found
