"""Defining an op of ours: schema, reference, fake kernel, and what autograd must know about it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .. import _extension
from .._torch import OpOverload, below_version_counters, has_kernel_for, overload_name, schema_of

_LIBRARY = torch.library.Library("torchgraph", "FRAGMENT")


def define(
    schema: str,
    reference: Callable[..., object],
    fake: Callable[..., object] | None = None,
    *,
    tags: tuple[torch.Tag, ...] = (),
    compiled: bool = True,
) -> OpOverload:
    """Define ``torchgraph::<schema>`` and return its overload.

    ``reference`` computes it in ATen, on every device. The first call that reaches it loads the
    compiled library, whose kernels then take its place; ``compiled=False``: there is none. ``fake``
    gives the results' metadata; without it the reference runs on fake tensors. An op that writes
    arguments raises their version counters, as ATen's do: its compiled kernels call what is in
    csrc/common/versions.h.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=tags)
    packet, _, overload = name.partition(".")
    op: OpOverload = getattr(getattr(torch.ops.torchgraph, packet), overload or "default")
    if schema_of(op).is_mutable:
        reference = _raising_versions(op, reference)
        fake = fake and _raising_versions(op, fake)
        if compiled:
            _extension.when_loaded(functools.partial(_raise_versions_first, op))
    kernel = _loading_first(op, reference) if compiled else reference
    _LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
    if fake is not None:
        torch.library.register_fake(f"torchgraph::{name}", fake, lib=_LIBRARY)
    return op


def differentiate(
    op: OpOverload, backward: Callable[..., object], setup_context: Callable[..., None]
) -> None:
    """Give an op a derivative, as `torch.library.register_autograd` does."""
    name = schema_of(op).name
    torch.library.register_autograd(name, backward, setup_context=setup_context, lib=_LIBRARY)


def has_kernel(op: OpOverload, device: torch.device) -> bool:
    """True when a kernel for that device stands before the op's reference. Loads the library."""
    if device.type not in ("cpu", "cuda"):
        return False
    _extension.load(device.type)
    return has_kernel_for(schema_of(op).name, device.type.upper())


def _loading_first(op: OpOverload, reference: Callable[..., object]) -> Callable[..., object]:
    tried: set[str] = set()

    @functools.wraps(reference)
    def kernel(*args: object, **kwargs: object) -> object:
        device = "cuda" if _on_cuda(args) or _on_cuda(kwargs.values()) else "cpu"
        if device not in tried:
            tried.add(device)
            if _extension.load(device):
                return op(*args, **kwargs)
        return reference(*args, **kwargs)

    return kernel


def _on_cuda(values: Any) -> bool:
    return any(
        value.is_cuda
        if isinstance(value, torch.Tensor)
        else isinstance(value, (list, tuple)) and _on_cuda(value)
        for value in values
    )


def _raising_versions(op: OpOverload, compute: Callable[..., object]) -> Callable[..., object]:
    """``compute``, then autograd learns what was written: below its kernels nothing tells it."""

    @functools.wraps(compute)
    def kernel(*args: object, **kwargs: object) -> object:
        result = compute(*args, **kwargs)
        torch.autograd.graph.increment_version(_written(op, args, kwargs))
        return result

    return kernel


def _written(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for position, argument in enumerate(schema_of(op).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs[argument.name]
            found.extend(value if isinstance(value, (list, tuple)) else [value])
    return found


def kernels_raise_versions() -> bool:
    """True when the compiled kernels, which are loaded, tell autograd what they write."""
    return bool(torch.ops.torchgraph.kernels_raise_versions())


def _raise_versions_first(op: OpOverload) -> None:
    """Increment version counters in Python, where an op's compiled kernels cannot."""
    if kernels_raise_versions():
        return

    def kernel(keyset: Any, *args: object, **kwargs: object) -> object:
        torch.autograd.graph.increment_version(_written(op, args, kwargs))
        return op.redispatch(keyset & below_version_counters, *args, **kwargs)

    name = schema_of(op).name + (f".{overload_name(op)}" if overload_name(op) != "default" else "")
    _LIBRARY.impl(name, kernel, "ADInplaceOrView", with_keyset=True)
