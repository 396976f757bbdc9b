"""Ops over lists of tensors, as torch has them for its optimizers: ``torch._foreach_add_``.

On a CPU each calls the op of its name for one tensor of the list after the other
(ATen/native/ForeachOpsKernels.cpp): that has the bits of a loop in Python, but where half precision
meets a number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def foreach(name: str) -> Callable[..., Any] | None:
    """The op over lists of an op such as ``add_``; None where this torch has none."""
    found: Callable[..., Any] | None = getattr(torch, f"_foreach_{name}", None)
    return found
