"""What a collective gives, once it is there: it begins where it is called, and ends later."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..ir import effects
from ..ir.values import tensors_of


def waited(node: fx.Node, value: Any) -> Any:
    """``value`` of a node, which may be looked at now."""
    if effects.of(node).communicates:
        arrived(value)
    return value


def arrived(value: Any) -> None:
    """Wait for what a collective gives; what is there already is not waited for."""
    for tensor in tensors_of(value):
        torch.ops._c10d_functional.wait_tensor(tensor)
