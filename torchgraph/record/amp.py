"""Mixed precision: `torch.autocast` around the forward part of `build`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, TypeVar

import torch

from .._torch import engine_watch
from .._torch.kept_casts import casting_anew
from ..objects import is_a

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Autocast:
    """``torch.autocast`` of one dtype on the device types of a step; nothing without a dtype.

    As in eager, a weight has one cast in a forward part, in which the gradients of all that reads
    it come together in half precision.
    """

    def __init__(self, dtype: torch.dtype | None, tensors: Iterable[object]) -> None:
        self._dtype = dtype
        devices = {value.device.type for value in tensors if is_a(value, torch.Tensor)}
        self._devices = sorted(filter(torch.amp.is_autocast_available, devices)) if dtype else []
        self._keeps_casts = torch.is_autocast_cache_enabled()

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Enable autocast in the block."""
        outer = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(self._keeps_casts)
        try:
            with casting_anew(), contextlib.ExitStack() as stack:
                for device in self._devices:
                    stack.enter_context(torch.autocast(device, self._dtype))
                yield
        finally:
            torch.set_autocast_cache_enabled(outer)

    @contextlib.contextmanager
    def backward(self, *, accumulates: bool) -> Iterator[None]:
        """Disable autocast in the block, as a loop does that leaves it before ``backward()``.

        Who leaves it casts anew afterwards; `torch.autograd.grad` is called in the midst of it.
        """
        with contextlib.ExitStack() as stack:
            for device in self._devices:
                if accumulates:
                    torch.clear_autocast_cache()
                    stack.callback(torch.clear_autocast_cache)
                stack.enter_context(torch.autocast(device, enabled=False))
            yield

    def eager(self, build: Callable[_P, _T]) -> Callable[_P, _T]:
        """``build`` as it runs without a Graph under this autocast."""

        @functools.wraps(build)
        def run(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            with self.forward(), engine_watch(lambda roots: None, lambda: None, self.backward):
                return build(*args, **kwargs)

        return run
