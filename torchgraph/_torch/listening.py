"""Hears every op below autograd, without a mode: nothing that eager asks can tell the difference.

An active `TorchDispatchMode` changes what autograd computes (its formulas ask whether any mode is
active), and a `TorchFunctionMode` drops fast paths of torch.nn. A kernel for all ops on a dispatch
key that no backend uses does neither: it lies below autograd and autocast, above the devices.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch._ops import (
    _HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS as _NOT_ASKED,
    _higher_order_ops as _takes_functions,
)

from . import TRACERS, FakeTensor, OpOverload, composite
from .names import patched
from .quantiles import QUANTILES, selects

Listener = Callable[[OpOverload, tuple[object, ...], dict[str, object]], object]
"""Called instead of each op, with what it is called with; returns what it returns."""

WHOLE = (torch.ops.aten.one_hot.default, *(QUANTILES if selects() else ()))
"""Ops that are calls of others, heard before: on the CPU they do more than these calls show."""
_KEY = torch._C._dispatch_key_parse("Fake")
_KEYS = torch._C.DispatchKeySet(_KEY)


class _Running(threading.local):
    """This thread's listener. A thread that C++ starts for a listening one has its keys alone."""

    listener: Listener | None = None


_running = _Running()
_elsewhere: list[Listener] = []
"""Told of the ops that such threads run; whoever waits for them, they are to raise nothing."""


@functools.cache
def _kernels() -> list[torch.library.Library]:
    """The library registrations that hear ops, for as long as the process lives."""
    library = torch.library.Library("_", "IMPL")
    library.fallback(_heard, "Fake")
    own = torch.library.Library("aten", "IMPL")
    for op in WHOLE:
        own.impl(op, functools.partial(_whole, op), "AutogradCPU")
    if not intercepts_subclasses():
        for name in torch._C._dispatch_get_all_op_names():
            if name.startswith("aten::"):
                own.impl(name, functools.partial(_named, name), "Fake")
    # An op that takes functions is heard by the ops that it runs.
    _NOT_ASKED.append(_KEY)
    for one in _takes_functions.values():
        one.fallthrough(_KEY)
    return [library, own]


def _heard(op: OpOverload, *args: object, **kwargs: object) -> object:
    fake = any(map(_is_fake, args))
    if _running.listener is not None and not fake:
        return _running.listener(op, args, kwargs)
    for hear in () if fake else tuple(_elsewhere):
        hear(op, args, kwargs)
    with not_listening():
        return op(*args, **kwargs)


def _is_fake(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_is_fake, value))
    return type(value) is FakeTensor


def _whole(op: OpOverload, *args: object, **kwargs: object) -> object:
    """Let the listener hear a composite op as one call; decompose it where nobody listens."""
    if _is_heard() and not any(map(_is_fake, args)):
        return _heard(op, *args, **kwargs)
    return composite(op, "CompositeImplicitAutograd")(*args, **kwargs)


def _named(name: str, *args: object, **kwargs: object) -> object:
    return _heard(_overload(name), *args, **kwargs)


@functools.cache
def _overload(name: str) -> OpOverload:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    found: OpOverload = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return found


class _Other(torch.Tensor):
    """A tensor with a dispatch of its own."""

    @classmethod
    def __torch_dispatch__(cls, *args: object, **kwargs: object) -> object:
        return None


def intercepts_subclasses() -> bool:
    """False where torch reports ops on tensor subclasses to Python kernels by name only."""
    probe = torch.Tensor._make_wrapper_subclass(_Other, (0,))
    with _heard_by(lambda op, args, kwargs: torch.empty(0)):
        try:
            torch.neg(probe)
        except RuntimeError:  # an assertion of torch 2.11's
            return False
    return True


@contextmanager
def _heard_by(listener: Listener) -> Iterator[None]:
    outer, _running.listener = _running.listener, listener
    try:
        with _tracers_unheard(), torch._C._IncludeDispatchKeyGuard(_KEY):
            yield
    finally:
        _running.listener = outer


@contextmanager
def _tracers_unheard() -> Iterator[None]:
    """Do not hear what torch traces, where the formulas of `torch.cond` ask for other ops.

    On its way into a mode an op forgets what is excluded within the listener.
    """
    here, guards = threading.get_ident(), list[Any]()

    def around(cls: type) -> tuple[Callable[..., object], Callable[..., object]]:
        enter: Callable[..., object] = cls.__enter__  # type: ignore[attr-defined]
        leave: Callable[..., object] = cls.__exit__  # type: ignore[attr-defined]

        def entering(mode: object) -> object:
            entered = enter(mode)
            if threading.get_ident() == here:
                guards.append(not_listening())
                guards[-1].__enter__()
            return entered

        def leaving(mode: object, *error: object) -> object:
            if threading.get_ident() == here:
                guards.pop().__exit__(None, None, None)
            return leave(mode, *error)

        return entering, leaving

    with ExitStack() as stack:
        for cls in TRACERS:
            entering, leaving = around(cls)
            stack.enter_context(patched(cls, "__enter__", entering, lifts=False))
            stack.enter_context(patched(cls, "__exit__", leaving, lifts=False))
        yield


def listening(listener: Listener) -> AbstractContextManager[None]:
    """Call ``listener`` instead of every op that this thread, or its backward pass, dispatches."""
    _kernels()
    return _heard_by(listener)


@contextmanager
def listening_through(wrap: Callable[[Listener], Listener]) -> Iterator[None]:
    """Wrap the current listener in the block."""
    outer = _running.listener
    assert outer is not None
    _running.listener = wrap(outer)
    try:
        yield
    finally:
        _running.listener = outer


@contextmanager
def hearing_elsewhere(hear: Listener) -> Iterator[None]:
    """Call ``hear`` before each op that threads of C++ run, started by a listening one.

    `torch.jit.fork` has such threads. They run beside the block, and may do so after it.
    """
    _elsewhere.append(hear)
    try:
        yield
    finally:
        _elsewhere.remove(hear)


def not_listening() -> AbstractContextManager[None]:
    """Run the ops in the block without calling the listener."""
    return torch._C._ExcludeDispatchKeyGuard(_KEYS)


def listening_again() -> AbstractContextManager[None]:
    """Call the listener in the block, in a block of `not_listening`."""
    included, excluded = (
        torch._C._dispatch_tls_local_include_set(),
        torch._C._dispatch_tls_local_exclude_set(),
    )
    return torch._C._ForceDispatchKeyGuard(included, excluded - _KEYS)


def is_listening() -> bool:
    """True where an op of this thread would be heard by its listener."""
    return _running.listener is not None and _is_heard()


def _is_heard() -> bool:
    return torch._C._dispatch_tls_is_dispatch_key_included(
        _KEY
    ) and not torch._C._dispatch_tls_is_dispatch_key_excluded(_KEY)


@functools.cache
def decomposes(op: OpOverload, device: str) -> bool:
    """True for an op that is implemented by calls of other ops alone.

    It is met whole in inference mode, and where the kernel of another op calls it.
    """
    key = torch._C.DispatchKey
    whole = "CUDA" if device == "cuda" else "CPU"
    return op.has_kernel_for_dispatch_key(
        key.CompositeImplicitAutograd
    ) and not op.has_kernel_for_dispatch_key(getattr(key, whole))
