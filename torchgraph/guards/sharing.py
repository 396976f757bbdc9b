"""The check of which states share memory, with each other and with the user's tensors.

A program writes states where it pleases: a fused update does many at once, compiled code reads them
all before it writes one. Two that a user ties later, ``b.data = a.data``, are another program's.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch

from .._torch import storage_id
from .._torch.distributed.held import local
from ..distributed.remote_states import note_storage_change
from ..ir.aliasing import MemoryLocation, has_strides, is_opaque, span
from .compiled import CompiledChecks
from .tensors import has_place

Relation = tuple[tuple[str, int], ...]
"""Tensors in one piece of memory, and where each begins in it, in bytes."""


class Sharing:
    """The memory that a program's states share, by their names.

    Args:
        free: tensors that the program uses besides.
        shared: how the states lay when the step began, if it may have given them other memory.
    """

    def __init__(
        self,
        states: Mapping[str, torch.Tensor],
        free: Mapping[str, torch.Tensor] = MappingProxyType({}),
        shared: frozenset[Relation] | None = None,
    ) -> None:
        self._states = {**free, **states}
        self.relations = relations(self._states)
        self._places = list(map(MemoryLocation.of, self._laid_out()))
        """While none moves, none comes to share another's memory."""
        if shared is not None and relations(states) != shared:
            with_free = (one for one in self.relations if any(name in free for name, _ in one))
            self.relations = shared.union(with_free)
            self._places = []

    def hold(self) -> bool:
        """True when the states that share memory are those of before, at the same offsets."""
        states = self._laid_out()
        if len(states) == len(self._places) and all(
            map(MemoryLocation.holds, self._places, states)
        ):
            return True
        if relations(self._states) != self.relations:
            return False
        note_storage_change()
        self._places = list(map(MemoryLocation.of, states))
        return True

    def _laid_out(self) -> list[torch.Tensor]:
        return list(filter(_has_memory, self._states.values()))

    def changed(self) -> str:
        """The first pair of states that began or ceased to share memory, in words."""
        now = relations(self._states)
        for found, word in ((now - self.relations, "now"), (self.relations - now, "no longer")):
            if found:
                (one, _), (other, _), *_ = min(found)
                return f"{one} and {other} share memory {word}"
        return ""

    def compile(self, checks: CompiledChecks, compared: Iterable[torch.Tensor]) -> None:
        """Add this to the compiled checks, which have ``compared`` of tensors where each lies."""
        known = set(map(id, compared))
        others = [tensor for tensor in self._states.values() if id(tensor) not in known]
        plain = tuple(filter(has_place, others))
        checks.storages(self.hold, plain)
        if len(plain) < len(others):
            checks.call(self.hold, ())


class Alias(NamedTuple):
    """A tensor that is not the step's, and the path of the state in whose memory it lies.

    A program knows it as a part of that state.
    """

    tensor: weakref.ref[torch.Tensor]
    path: str
    place: tuple[object, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor, path: str) -> Alias:
        """The alias of ``tensor``, with its present place."""
        return cls(weakref.ref(tensor), path, _place(tensor))

    def lies_in(self, state: torch.Tensor) -> bool:
        """True unless it shows another part now, or other memory: ``weight.data = ...`` leaves it
        behind."""
        tensor = self.tensor()
        if tensor is None:
            return True
        return storage_id(tensor) == storage_id(state) and _place(tensor) == self.place


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def relations(tensors: Mapping[str, torch.Tensor]) -> frozenset[Relation]:
    """Groups of overlapping tensors, across storages too, as for those of one NumPy array."""
    found: list[list[tuple[str, int]]] = []
    base = reach = 0
    for first, end, name in sorted(_pieces(tensors)):
        if first >= reach:
            found.append([])
            base = first
        found[-1].append((name, first - base))
        reach = max(reach, end)
    return frozenset(tuple(one) for one in found if len(one) > 1)


def _has_memory(tensor: torch.Tensor) -> bool:
    """True where storage and strides say where a tensor lies."""
    return not is_opaque(tensor) and has_strides(tensor)


def _pieces(tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[int, int, str]]:
    """The start and end address of each tensor; those without memory are left out."""
    for name, tensor in tensors.items():
        if not _has_memory(tensor):
            continue
        start = local(tensor).untyped_storage().data_ptr()
        first, end = span(tensor)
        if start and end > first:
            yield start + first, start + end, name
