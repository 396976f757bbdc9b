"""A tensor that a step keeps in memory which was there before: of a parameter, of an argument."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ..._torch import storage_id
from ...ir.aliasing import has_strides
from ...ir.program import Role
from ...live.inputs import Call
from ...live.step import Leaf


@dataclass(frozen=True)
class AliasSlot:
    """The memory of a state, or of an argument of a call, as another tensor sees it."""

    name: str
    holder: int | Leaf = field(compare=False)
    """A number stands for an argument."""
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """Elements from where the other one begins."""
    same: bool = False
    """It is that very tensor."""
    number: int = 0
    """Which of the tensors it is that a step keeps so: it may keep one in several places."""

    def tensor(self, call: Call, made: dict[int, torch.Tensor]) -> torch.Tensor:
        """The tensor that lies there now. ``made``: by number, those made in this call already."""
        if self.number not in made:
            made[self.number] = self._new(call)
        return made[self.number]

    def _new(self, call: Call) -> torch.Tensor:
        holder = self.holder
        found: torch.Tensor = call.tensors[holder] if isinstance(holder, int) else holder.read()
        if self.same:
            return found
        begin = found.storage_offset() + self.offset
        alias: torch.Tensor = found.detach().as_strided(self.size, self.stride, begin)
        return alias


def alias_of(tensor: torch.Tensor, leaves: Sequence[Leaf]) -> AliasSlot | None:
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
