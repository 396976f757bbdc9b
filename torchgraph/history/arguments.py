"""The tensors of calls, copied where they may be written later, and else held as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .._torch.tensors import version_of
from ..live.inputs import Call

_TRIED = 2
"""So many calls in a row have to bring tensors that stay as they are before one is held."""


@dataclass
class Held:
    """A call to be run again."""

    call: Call
    versions: tuple[int | None, ...]
    """Version counters of the caller's own tensors; None for a copy."""

    def moved(self) -> bool:
        """True when the caller has written a tensor since."""
        pairs = zip(self.call.tensors, self.versions, strict=True)
        return any(known is not None and version_of(t) != known for t, known in pairs)

    @property
    def nbytes(self) -> int:
        """Bytes of the copies."""
        pairs = zip(self.call.tensors, self.versions, strict=True)
        return sum(tensor.nbytes for tensor, known in pairs if known is None)

    def again(self) -> Call:
        """The call with tensors that the step may write."""
        return self.call.over(list(map(copied, self.call.tensors)))


class Arguments:
    """Learns which arguments come in tensors that are written later, as static buffers are."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[torch.Tensor, int]] = {}
        self._good: dict[int, int] = {}
        self._versions: dict[int, int] = {}
        """Where a held tensor starts -> its version then."""
        self._written: set[int] = set()

    def held(self, call: Call, written: frozenset[int]) -> Held:
        """``call`` as it is now. ``written``: the places of tensors that the step writes."""
        tensors, versions = [], list[int | None]()
        for place, tensor in enumerate(call.tensors):
            own = self._stays(place, tensor) and place not in written
            versions.append(version_of(tensor) if own else None)
            tensors.append(tensor if own else copied(tensor))
            if own:
                self._versions[tensor.data_ptr()] = version_of(tensor)
        return Held(call.over(tensors), tuple(versions))

    def _stays(self, place: int, tensor: torch.Tensor) -> bool:
        if tensor.is_inference() or place in self._written or not _is_torchs(tensor):
            return False
        version = version_of(tensor)
        last = self._last.get(place)
        moved = last is not None and version_of(last[0]) != last[1]
        if moved or self._versions.get(tensor.data_ptr(), version) != version:
            self._written.add(place)
            self._last.pop(place, None)
            return False
        self._last[place] = (tensor, version)
        self._good[place] = self._good.get(place, -1) + 1
        return self._good[place] >= _TRIED


def _is_torchs(tensor: torch.Tensor) -> bool:
    """False for memory of others, as a NumPy array's, whose writes no version counts."""
    return bool(tensor.untyped_storage().resizable())


def copied(tensor: torch.Tensor) -> Any:
    """A tensor of its own with the same strides that asks for gradients as this one does."""
    made = tensor.detach().clone()
    return made.requires_grad_(tensor.requires_grad) if tensor.requires_grad else made
