"""Hears every op below autograd, without a mode: nothing that eager asks can tell the difference.

An active `TorchDispatchMode` changes what autograd computes (its formulas ask whether any mode is
active), and a `TorchFunctionMode` drops fast paths of torch.nn. A kernel for all ops on a dispatch
key that no backend uses does neither: it lies below autograd and autocast, above the devices.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from ._torch import OpOverload, composite

Listener = Callable[[OpOverload, tuple[Any, ...], dict[str, Any]], Any]
"""Called instead of each op, with what it is called with; returns what it returns."""

WHOLE = (torch.ops.aten.one_hot.default,)
"""Ops that are calls of others, heard before: on the CPU they read values to check them alone."""
_KEY = torch._C._dispatch_key_parse("Fake")
_KEYS = torch._C.DispatchKeySet(_KEY)
_running = threading.local()


@functools.cache
def _kernels() -> tuple[torch.library.Library, ...]:
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda op, *args, **kwargs: _running.listener(op, args, kwargs), "Fake")
    whole = torch.library.Library("aten", "IMPL")
    for op in WHOLE:
        whole.impl(op, functools.partial(_whole, op), "AutogradCPU")
    return library, whole


def _whole(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """A composite op: heard as one where somebody listens, else what it is without us."""
    if is_listening():
        return _running.listener(op, args, kwargs)
    return composite(op, "CompositeImplicitAutograd")(*args, **kwargs)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call ``listener`` instead of every op that this thread, or its backward pass, dispatches."""
    _kernels()
    outer = getattr(_running, "listener", None)
    _running.listener = listener
    try:
        with torch._C._IncludeDispatchKeyGuard(_KEY):
            yield
    finally:
        _running.listener = outer


def not_listening() -> AbstractContextManager[None]:
    """In the block, ops run as if nobody listened."""
    return torch._C._ExcludeDispatchKeyGuard(_KEYS)


def is_listening() -> bool:
    """True where an op of this thread would be heard."""
    return torch._C._dispatch_tls_is_dispatch_key_included(
        _KEY
    ) and not torch._C._dispatch_tls_is_dispatch_key_excluded(_KEY)


@functools.cache
def decomposes(op: OpOverload, device: str) -> bool:
    """True for an op that is nothing but calls of others.

    It is met whole in inference mode, and where the kernel of another op calls it.
    """
    key = torch._C.DispatchKey
    whole = "CUDA" if device == "cuda" else "CPU"
    return op.has_kernel_for_dispatch_key(
        key.CompositeImplicitAutograd
    ) and not op.has_kernel_for_dispatch_key(getattr(key, whole))
