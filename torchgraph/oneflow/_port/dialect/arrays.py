"""Beside NumPy's arrays a tensor is an array, as in OneFlow; torch makes tensors of the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor

from ..devices import on_cpu


def as_arrays(speaks: Callable[[], bool]) -> None:
    """Let ``numpy.ones(2) * tensor`` be an array, and ``Tensor(array)`` a copy.

    OneFlow's tensors have neither of the attributes by which torch's take NumPy's place, and its
    constructor keeps no memory of an array's, and takes a device.

    Args:
        speaks: whether the caller of the function that asks is code for OneFlow.
    """
    for name in ("__array_priority__", "__array_wrap__"):
        setattr(Tensor, name, _Hidden(name, getattr(Tensor, name), speaks))
    known = Tensor.__new__

    def make(*args: Any, **kwargs: Any) -> Any:  # the class first; torch._dynamo has it so
        if args[0] is not torch.Tensor or not speaks():
            return known(*args, **kwargs)
        where = kwargs.pop("device", None)  # torch's constructor takes the CPU alone
        found = known(*args, **kwargs)
        if len(args) == 2 and isinstance(args[1], (Tensor, numpy.ndarray)):
            return found.to(on_cpu.meant(where), copy=True)
        return found.to(on_cpu.meant(where))

    setattr(Tensor, "__new__", staticmethod(make))  # noqa: B010


class _Hidden:
    """An attribute of torch's tensors that those of code for OneFlow lack."""

    def __init__(self, name: str, known: Any, speaks: Callable[[], bool]) -> None:
        self._name, self._known, self._speaks = name, known, speaks

    def __get__(self, instance: Tensor | None, owner: type) -> Any:
        if instance is None:
            return self._known
        if self._speaks():
            raise AttributeError(f"a tensor of OneFlow has no {self._name}")
        return self._known.__get__(instance) if callable(self._known) else self._known
