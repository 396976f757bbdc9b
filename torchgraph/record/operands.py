"""The tensors among the arguments of an op."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .facts import Facts


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Those in nested lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))


def written(known: Facts, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """Those that a call writes."""
    for position, name in known.writes:
        yield from tensors(args[position] if position < len(args) else kwargs.get(name))


def device(args: tuple[Any, ...]) -> str:
    """The kind of device that the first of them is on."""
    return next((arg.device.type for arg in args if isinstance(arg, torch.Tensor)), "cpu")
