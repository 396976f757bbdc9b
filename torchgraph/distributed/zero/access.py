"""Modules that hold a sharded parameter and read it whole by its name."""

from __future__ import annotations

from collections.abc import Callable, Container
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn

from ..._torch.modules import parameters_of

_running: ContextVar[int] = ContextVar("_running", default=0)
"""How many modules run: what reads a parameter meanwhile computes with it."""

Read = Callable[[torch.Tensor, bool], torch.Tensor]
"""What a module gets for a parameter. Told whether a module runs."""


class _Reader:
    """Marker base of the module classes that are made here."""


def let_read_whole(module: nn.Module, read: Read, parts: Container[int]) -> None:
    """Let ``module`` return ``read(parameter)`` under the names of its parameters in ``parts``.

    For that it has a class of its own, which is called as its class was. What it holds, and
    ``module.parameters()`` gives, is the DTensor.
    """
    held = module.named_parameters(recurse=False, remove_duplicate=False)
    names = [name for name, one in held if id(one) in parts]
    cls = type(module)
    if issubclass(cls, _Reader):
        cls = cls.__mro__[1]
    own: dict[str, Any] = {name: _property(name, read) for name in names}
    own.update(__module__=cls.__module__, __qualname__=cls.__qualname__, __call__=_calling(cls))
    module.__class__ = type(cls.__name__, (cls, _Reader), own)


def _property(name: str, read: Read) -> property:
    def get(module: nn.Module) -> torch.Tensor:
        parameter = parameters_of(module)[name]
        assert parameter is not None
        return read(parameter, _running.get() > 0)

    return property(get)


def _calling(cls: type[nn.Module]) -> Callable[..., Any]:
    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        token = _running.set(_running.get() + 1)
        try:
            return cls.__call__(module, *args, **kwargs)
        finally:
            _running.reset(token)

    return call
