"""Collectives on the tape: each starts, and is waited for at once.

In eager a functional collective gives a tensor that fills later, and the first op that reads it
waits. On the tape the wait follows the collective, and what lies in that memory is the value that
the wait gives: no op can read one that is under way. A pass moves the two apart again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..._torch import OpOverload
from ..._torch.listening import not_listening

NAMESPACE = "_c10d_functional"
WAIT: Any = torch.ops._c10d_functional.wait_tensor.default
_WAITING = frozenset({"wait_tensor", "_wrap_tensor_autograd"})
"""Ops that only wait, or say who will."""


def starts(op: OpOverload) -> bool:
    """True for an op whose results fill later."""
    return op.namespace == NAMESPACE and not _only_waits(op)


def is_wait(op: OpOverload) -> bool:
    """True for one that leaves nothing on the tape: a wait, which is there already."""
    return op.namespace == NAMESPACE and _only_waits(op)


def waited(out: object, write: Callable[[torch.Tensor], None]) -> None:
    """Wait for the results of a collective; ``write`` writes that down for each of them."""
    if isinstance(out, torch.Tensor):
        with not_listening():
            WAIT(out)
        write(out)
    elif isinstance(out, (list, tuple)):
        for item in out:
            waited(item, write)


def _only_waits(op: Any) -> bool:
    name: str = op.name()
    return name.partition("::")[2].partition(".")[0] in _WAITING
