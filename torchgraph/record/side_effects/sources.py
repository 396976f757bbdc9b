"""Provenance of the tensors that a step leaves in places: outputs, arguments or aliases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ..._torch import storage_id
from ...effects.trees import AliasSlot, ArgumentSlot, OutputSlot
from ...ir.aliasing import has_strides
from ...ir.program import Role
from ...live.step import Leaf
from ...objects import is_a
from ..tape.number import node_of


class Sources:
    """The provenance of each tensor that one step leaves in a place.

    Args:
        known: the leaves of all inputs.
        given: the leaves of the arguments, in their order.
        first: the number of outputs of the program before these.
    """

    def __init__(self, known: Sequence[Leaf], given: Sequence[Leaf], first: int) -> None:
        self._known, self._first = known, first
        values = [leaf.value for leaf in known]
        self.before = {storage_id(value) for value in values if is_a(value, torch.Tensor)}
        """The storages from before the step."""
        self._position = {id(leaf.value): number for number, leaf in enumerate(given)}
        self._slots: dict[int, OutputSlot] = {}
        self._aliases: dict[int, AliasSlot] = {}
        self.late: list[tuple[str, Any]] = []
        """The outputs added to the program, with names."""

    def output(self, name: str, tensor: Any) -> OutputSlot:
        """The output slot of a tensor, added to the program where it has none."""
        if id(tensor) not in self._slots:
            self._slots[id(tensor)] = OutputSlot(self._first + len(self.late))
            self.late.append((name, tensor))
        return self._slots[id(tensor)]

    def of(self, name: str, tensor: Any) -> OutputSlot | ArgumentSlot | AliasSlot:
        """The slot of a tensor or symbolic number: output, argument or alias."""
        if node_of(tensor) is not None:
            return self.output(name, tensor)
        argument = self._position.get(id(tensor))
        if argument is not None:
            return ArgumentSlot(argument)
        alias = self._alias(tensor)
        if alias is None:
            return self.output(name, tensor)
        return self._aliases.setdefault(id(tensor), replace(alias, number=len(self._aliases)))

    def owned(self, tensor: torch.Tensor) -> bool:
        """True for an alias of earlier memory that no slot can express."""
        there = id(tensor) not in self._position and storage_id(tensor) in self.before
        return there and self._alias(tensor) is None

    def _alias(self, tensor: torch.Tensor) -> AliasSlot | None:
        return _alias_of(tensor, self._known) if storage_id(tensor) in self.before else None


def _alias_of(tensor: torch.Tensor, leaves: Sequence[Leaf]) -> AliasSlot | None:
    """``tensor`` as one of these, or a view of one; None where it is neither.

    Another one that trains, or is no plain tensor, is more than such a view.
    """
    for leaf in leaves:
        if leaf.value is tensor and leaf.role is not Role.INPUT:
            return AliasSlot(leaf.fqn, leaf, (), (), 0, same=True)
    if type(tensor) is not torch.Tensor or tensor.requires_grad or not has_strides(tensor):
        return None
    if tensor.is_conj() or tensor.is_neg():
        return None
    for leaf in leaves:
        given, other = leaf.role is Role.INPUT and isinstance(leaf.root, list), leaf.value
        stays = given or leaf.role is not Role.INPUT
        if not stays or not isinstance(other, torch.Tensor) or not has_strides(other):
            continue
        if storage_id(other) == storage_id(tensor) and other.dtype is tensor.dtype:
            offset = tensor.storage_offset() - other.storage_offset()
            holder = leaf.path[0] if given else leaf
            return AliasSlot(leaf.fqn, holder, tensor.shape, tensor.stride(), int(offset))
    return None
