"""Tensor wrappers of torch.distributed: DTensor, and the pending result of a collective.

Importing this file loads neither; a tensor of such a class says that it is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

_DTENSOR = "torch.distributed.tensor"
_FUNCTIONAL = "torch.distributed._functional_collectives"

_wrapper_kinds: dict[type, bool] = {torch.Tensor: False, torch.nn.Parameter: False}
"""Classes that were met -> whether they hold another tensor."""


def is_wrapper(value: object) -> bool:
    """True for a DTensor, and for the result of a collective that nobody has waited for."""
    kind = type(value)
    known = _wrapper_kinds.get(kind)
    if known is None:
        known = _wrapper_kinds[kind] = issubclass(kind, _loaded())
    return known


def is_dtensor(value: object) -> bool:
    """True for a DTensor; loads nothing."""
    module = sys.modules.get(_DTENSOR)
    return module is not None and issubclass(type(value), module.DTensor)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The local part of a DTensor or of another wrapper; other tensors themselves.

    A collective that is under way is waited for.
    """
    while is_wrapper(tensor):
        held: Any = tensor
        tensor = held._local_tensor if is_dtensor(tensor) else held.wait()
    return tensor


def layout_of(tensor: torch.Tensor) -> Any:
    """The DTensorSpec of a DTensor, with the whole's shape and strides; else None."""
    held: Any = tensor
    return held._spec if is_dtensor(tensor) else None


def as_dtensor(part: torch.Tensor, layout: Any) -> torch.Tensor:
    """A DTensor over ``part``, which shares its memory; ``layout`` is another's `layout_of`."""
    dtensor: Any = sys.modules[_DTENSOR]
    if layout.tensor_meta.dtype != part.dtype:
        layout = replace(layout, tensor_meta=layout.tensor_meta._replace(dtype=part.dtype))
    made: torch.Tensor = dtensor.DTensor(part, layout, requires_grad=part.requires_grad)
    return made


def locally(function: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    """``function(tensor)``; of a DTensor, a DTensor over what it makes of the local part.

    It returns a tensor of the same shape and strides.
    """
    layout = layout_of(tensor)
    found = function(local(tensor))
    return found if layout is None else as_dtensor(found, layout)


def _loaded() -> tuple[type, ...]:
    places = ((_DTENSOR, "DTensor"), (_FUNCTIONAL, "AsyncCollectiveTensor"))
    return tuple(getattr(sys.modules[m], name) for m, name in places if m in sys.modules)
