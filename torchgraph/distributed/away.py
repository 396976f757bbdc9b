"""States that other ranks keep: here they hold no memory, and whoever reads one reads NaN."""

from __future__ import annotations

import weakref

import torch

_away: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()


_moves = 0


def moves() -> int:
    """How often a state was seen to get other memory: sent away, brought back, or by its user."""
    return _moves


def note_move() -> None:
    """A state has other memory than before: whatever keeps addresses asks for them again."""
    global _moves
    _moves += 1


def send_away(tensor: torch.Tensor) -> None:
    """Give the memory of a tensor of real or complex numbers back.

    It stays the object that it is, of the same shape, dtype and device. Its elements read as NaN,
    and an op that writes other values into each raises, since they are one element.
    """
    if not is_away(tensor):
        note_move()
        nan = torch.full((), float("nan"), dtype=tensor.dtype, device=tensor.device)
        tensor.data = nan.expand(tensor.shape)
        _away[id(tensor)] = tensor


def bring_back(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Let a tensor that is away hold ``value``, in the memory of that one."""
    note_move()
    tensor.data = value
    _away.pop(id(tensor), None)


def is_away(tensor: torch.Tensor) -> bool:
    """True where another rank keeps the values."""
    found = _away.get(id(tensor))
    return found is tensor and not any(tensor.stride())
