"""Fingerprints of batches: two recordings confirm less where their batches are equal."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from .._torch import storage_id
from .._torch.distributed.held import local
from .._torch.tensors import version_of
from ..ir.aliasing import MemoryLocation
from ..ir.bits import fingerprint
from ..ir.program import Role
from ..live.inputs import Call
from ..record.compare.outcome import Outcome

_WINDOWS, _WINDOW = 3, 1024
"""How many parts of a large tensor are looked at in each call, and their bytes."""


@dataclass(frozen=True)
class Batch:
    """A fingerprint of a call's tensors, which keeps none of them alive."""

    digest: tuple[bytes, ...]
    """By tensor, a fingerprint of all its bits."""
    places: tuple[MemoryLocation, ...]
    marks: tuple[object, ...]
    """By tensor, a key that writes change; see `_mark`."""

    @classmethod
    def of(cls, call: Call) -> Batch:
        """The fingerprint of a call; reads all of the tensors: a second for a gigabyte."""
        digest, marks = tuple(map(fingerprint, call.tensors)), tuple(map(_mark, call.tensors))
        return cls(digest, tuple(map(MemoryLocation.of, call.tensors)), marks)

    def equals(self, call: Call) -> bool:
        """True for a call with the same values."""
        rows = zip(call.tensors, self.digest, self.places, self.marks, strict=True)
        return all(
            (place.holds(tensor) and _mark(tensor) == mark) or fingerprint(tensor) == digest
            for tensor, digest, place, mark in rows
        )


def _mark(tensor: torch.Tensor) -> object:
    """A tensor's version, and some bytes for writes that torch does not count, as NumPy's."""
    version = 0 if tensor.is_inference() else version_of(tensor)
    if tensor.device.type != "cpu":
        return version
    tensor = local(tensor)  # a rank's local part of a DTensor, whose size is global
    if not tensor.is_contiguous():
        return version, fingerprint(tensor)
    start, size = tensor.data_ptr(), tensor.nbytes
    if size <= _WINDOWS * _WINDOW:
        return version, ctypes.string_at(start, size)
    step = (size - _WINDOW) // (_WINDOWS - 1)
    return version, *(ctypes.string_at(start + i * step, _WINDOW) for i in range(_WINDOWS))


@dataclass(frozen=True, eq=False)
class WeakConfirmation:
    """A program's confirmation by an equal batch, with the conditions that it leaves open."""

    key: object
    """The key of the calls that the program may serve."""
    batch: Batch | None
    """The batch, where constants may stem from it."""
    places: Mapping[int, MemoryLocation]
    """The memory of arguments that the step may also hold as a global or attribute."""

    @classmethod
    def about(
        cls, key: object, batches: tuple[Batch, Batch], old: Outcome, new: Outcome
    ) -> WeakConfirmation | None:
        """The weak confirmation; None where two equal recordings suffice."""
        then, now = batches
        leaves = zip(old.leaves, new.leaves, strict=True)
        others = any(
            one.role is Role.FREE and storage_id(one.value) != storage_id(other.value)
            for (one, _), (other, _) in leaves
        )
        constants = others or bool(new.tape.constants)
        batch = now if constants and now.digest and then.digest == now.digest else None
        pairs = zip(then.places, now.places, strict=True)
        places = {number: place for number, (one, place) in enumerate(pairs) if one == place}
        return cls(key, batch, places) if batch is not None or places else None

    def is_told_by(self, call: Call) -> bool:
        """True for a call whose batch differs, which can confirm the program."""
        for number, place in self.places.items():
            if not place.holds(call.tensors[number]):
                return True
        return self.batch is not None and not self.batch.equals(call)
