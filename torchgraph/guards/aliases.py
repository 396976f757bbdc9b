"""Tensors of the user's that lie in the memory of a state: a program knows them as parts of it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from .._torch import storage_id


class Alias(NamedTuple):
    """A tensor that is not the step's, and the path of the state in whose memory it was found."""

    tensor: weakref.ref[torch.Tensor]
    path: str
    place: tuple[object, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor, path: str) -> Alias:
        """With the place that it has now."""
        return cls(weakref.ref(tensor), path, _place(tensor))


class Aliases:
    """That they still lie there: ``weight.data = ...`` leaves a view behind, in the old memory."""

    def __init__(
        self, found: Sequence[Alias], state: Callable[[str], torch.Tensor] | None = None
    ) -> None:
        self._found = found
        self._pairs = [] if state is None else [(alias, state(alias.path)) for alias in found]

    def over(self, state: Callable[[str], torch.Tensor]) -> Aliases:
        """The same of other states, in whose memory they have to lie."""
        return Aliases(self._found, state)

    def with_more(self, found: Sequence[Alias]) -> Aliases:
        """Also these; `over` says of which states."""
        known = {id(alias.tensor()) for alias in self._found}
        more = [alias for alias in found if id(alias.tensor()) not in known]
        return Aliases([*self._found, *more])

    def hold(self) -> bool:
        """True when each that is left shows the same part of the same memory."""
        return all(_lies_in(alias, state) for alias, state in self._pairs)

    def __bool__(self) -> bool:
        return bool(self._found)


def _lies_in(alias: Alias, state: torch.Tensor) -> bool:
    tensor = alias.tensor()
    if tensor is None:
        return True
    return storage_id(tensor) == storage_id(state) and _place(tensor) == alias.place


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
