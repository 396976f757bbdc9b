"""The tensors of calls, copied: nothing tells for sure that a caller has not written his own."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import ref

import torch

from .._torch.tensors import version_of
from ..ir.bits import same_bits
from ..live.inputs import Call


@dataclass
class Held:
    """A call to be run again, over copies that equal arguments of other calls may share."""

    call: Call

    def again(self) -> Call:
        """The call with tensors that the step may write."""
        return self.call.over(list(map(copied, self.call.tensors)))


@dataclass
class _Last:
    """A tensor of the call before, and its copy."""

    tensor: ref[torch.Tensor]
    version: int
    copy: torch.Tensor

    def still(self, tensor: torch.Tensor) -> bool:
        """True for the same tensor that holds the same; a version alone misses some writes."""
        known = self.tensor() is tensor and version_of(tensor) == self.version
        return known and same_bits(tensor, self.copy)


class Arguments:
    """Copies the tensors of calls; one that a call brings again, as it was, is copied once."""

    def __init__(self) -> None:
        self._last: dict[int, _Last] = {}

    def held(self, call: Call) -> Held:
        """The recorded arguments of ``call``, with copies of its tensors."""
        return Held(call.over([self._copy(*one) for one in enumerate(call.tensors)]))

    def _copy(self, place: int, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_inference():
            return copied(tensor)
        last = self._last.get(place)
        if last is None or not last.still(tensor):
            last = _Last(ref(tensor), version_of(tensor), copied(tensor))
            self._last[place] = last
        return last.copy


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of its own with the same strides that asks for gradients as this one does."""
    made = tensor.detach().clone()
    return made.requires_grad_(tensor.requires_grad) if tensor.requires_grad else made
