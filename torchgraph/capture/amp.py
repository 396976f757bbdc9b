"""Mixed precision as torch has it: autocast around the forward part of `build`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from .._torch import engine_watch


class Autocast:
    """``torch.autocast`` of one dtype on the device types of a step; nothing without a dtype."""

    def __init__(self, dtype: torch.dtype | None, tensors: Iterable[object]) -> None:
        self._dtype = dtype
        devices = {value.device.type for value in tensors if isinstance(value, torch.Tensor)}
        self._devices = sorted(filter(torch.amp.is_autocast_available, devices)) if dtype else []

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """On."""
        with contextlib.ExitStack() as stack:
            for device in self._devices:
                stack.enter_context(torch.autocast(device, self._dtype))
            yield

    @contextlib.contextmanager
    def backward(self) -> Iterator[None]:
        """Off again, as in a training loop that leaves autocast before it calls backward."""
        with contextlib.ExitStack() as stack:
            for device in self._devices:
                stack.enter_context(torch.autocast(device, enabled=False))
            yield

    def eager(self, build: Callable[..., Any]) -> Callable[..., Any]:
        """``build`` as it runs without a Graph under this autocast."""

        @functools.wraps(build)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self.forward(), engine_watch(lambda roots: None, lambda: None, self.backward):
                return build(*args, **kwargs)

        return run
