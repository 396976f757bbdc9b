"""Remote states: tensors whose values other ranks hold. Here they have no memory; read as NaN."""

from __future__ import annotations

import weakref

import torch

_remote: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()


_storage_changes = 0


def storage_changes() -> int:
    """How many changes of a state's storage were seen: made remote, made local, or by its user."""
    return _storage_changes


def note_storage_change() -> None:
    """Count a change of a state's storage, so that whoever caches addresses reads them again."""
    global _storage_changes
    _storage_changes += 1


def make_remote(tensor: torch.Tensor) -> None:
    """Free the memory of a tensor of a floating-point or complex dtype.

    It stays the object that it is, of the same shape, dtype and device. Its elements read as NaN,
    and an op that writes other values into each raises, since they are one element.
    """
    if not is_remote(tensor):
        note_storage_change()
        nan = torch.full((), float("nan"), dtype=tensor.dtype, device=tensor.device)
        tensor.data = nan.expand(tensor.shape)
        _remote[id(tensor)] = tensor


def make_local(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Let a remote tensor hold ``value``, sharing its memory."""
    note_storage_change()
    tensor.data = value
    _remote.pop(id(tensor), None)


def is_remote(tensor: torch.Tensor) -> bool:
    """True for a tensor whose values another rank holds."""
    found = _remote.get(id(tensor))
    return found is tensor and not any(tensor.stride())
