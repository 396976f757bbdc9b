"""The tensors among the arguments of an op."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ...ir.values import tensors_of
from ..tape.tape import Args
from .facts import Facts


def written(known: Facts, args: Args, kwargs: Mapping[str, object]) -> Iterator[torch.Tensor]:
    """The tensors that a call writes."""
    for position, name in known.writes:
        yield from tensors_of(args[position] if position < len(args) else kwargs.get(name))


def read(known: Facts, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that a call reads or writes, but for those used for their shape alone.

    ``torch.baddbmm(torch.empty(...), q, k, beta=0)`` is the product: what is to be added to it is
    not read.
    """
    if known.adds_to and type(beta := kwargs.get("beta", 1)) in (int, float) and beta == 0:
        return tensors_of((args[1:], kwargs))
    if not known.reads_for:
        return tensors_of((args, kwargs))
    mask = kwargs["output_mask"] if "output_mask" in kwargs else args[-1]
    unread = [position for position, result in known.reads_for if not mask[result]]
    return tensors_of(([arg for at, arg in enumerate(args) if at not in unread], kwargs))


def device(args: Args) -> str:
    """The device type of the first tensor."""
    return next((arg.device.type for arg in args if isinstance(arg, torch.Tensor)), "cpu")


def as_tensor(value: object) -> torch.Tensor:
    """The tensor, or the number as one."""
    if isinstance(value, torch.Tensor):
        return value
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
