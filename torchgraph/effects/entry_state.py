"""Places that keep values between calls, and guards on their state at the entry of a call."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from .._torch import storage_id
from ..guards.aspects import Same
from ..guards.items import is_plain_throughout
from ..guards.names import CONTENT, By, Name, Path, follow
from ..ir.aliasing import has_strides
from ..ir.program import Role
from ..live.inputs import Call
from ..live.named import put
from ..live.step import Leaf
from ..objects import is_a
from ..structure import Unfit, check, key_of, tensors_in

GRAD: Any = torch.Tensor.grad  # a C property


@dataclass(frozen=True)
class Item:
    """A key of a dict or list, or the cell of a closure variable."""

    name: str
    holder: Any
    item: Any

    @property
    def key(self) -> tuple[object, ...]:
        """A hash key, equal for equal places."""
        return (id(self.holder), self.item)

    @property
    def _path(self) -> Path:
        return CONTENT if isinstance(self.holder, types.CellType) else ((By.ITEM, self.item),)

    def read(self) -> object:
        """The present value; `ABSENT` for none."""
        return follow(self.holder, self._path)

    def write(self, value: object, call: Call | None = None) -> None:
        """Store ``value``."""
        put(self.holder, self._path, value)


class Keyed:
    """A dataclass compared by its fields, user objects by identity."""

    @property
    def key(self) -> tuple[object, ...]:
        """A hash key, equal for equal instances."""
        own: Any = self
        held = (getattr(self, one.name) for one in fields(own) if one.compare)
        return (type(self).__name__, *map(_key_of, held))


def _key_of(value: Any) -> object:
    if isinstance(value, (Keyed, Item, Name)):
        return value.key
    if isinstance(value, Leaf):
        return value.fqn
    if type(value) is tuple:
        return tuple(map(_key_of, value))
    return value if isinstance(value, (int, str)) else id(value)


@dataclass(frozen=True)
class Appended(Keyed):
    """The end of a list, where the step appends."""

    name: str = field(compare=False)
    holder: Any
    number: int
    """The number of earlier appends in the step."""

    def write(self, value: object, call: Call) -> None:
        """Append ``value``."""
        self.holder.append(value)


@dataclass(frozen=True)
class MovedToEnd(Keyed):
    """The order of a dict whose keys the step moves to the end."""

    holder: dict[object, object]

    def write(self, value: Any, call: Call) -> None:
        """Move these keys to the end, as the step that popped and set them."""
        for key in value:
            if key in self.holder:
                self.holder[key] = self.holder.pop(key)


@dataclass(frozen=True)
class ValueAtEntry:
    """A guard on the value of a place at entry, its tensors excepted."""

    place: Item
    found: object
    """The `described` value at the recording."""

    @property
    def key(self) -> tuple[object, ...]:
        """A hash key, equal for equal guards."""
        return (*self.place.key, self.found)

    def fits(self) -> bool:
        """True when the present value has the same description."""
        return described(self.place.read()) == self.found


@dataclass(frozen=True)
class Named(Keyed):
    """The value under a name, as a destination and as the root of a leaf."""

    name: Name

    def __getitem__(self, key: str) -> object:
        return follow(self.name.owner(), self.name.path)

    def write(self, value: object, call: Call) -> None:
        """Store ``value``; `ABSENT` deletes the place."""
        owner = self.name.owner()
        if owner is not None:
            put(owner, self.name.path, value)


@dataclass(frozen=True)
class Bounded(Keyed):
    """A guard on a full deque: as many appends drop as many items."""

    holder: deque[object]
    appended: int
    dropped: int

    def fits(self) -> bool:
        """True when the same number of items is dropped."""
        length, most = len(self.holder) + self.appended, self.holder.maxlen
        return most is not None and max(length - most, 0) == self.dropped


@dataclass(frozen=True)
class Filled(Keyed):
    """A guard on a list's length and on which of its items are one tensor."""

    holder: Any
    places: tuple[int, ...]
    """The `first_places` of the list, which a moved tensor would change."""

    def fits(self) -> bool:
        """True when length and repeated tensors are the same."""
        return first_places(self.holder) == self.places


@dataclass(frozen=True)
class HaveGradients(Keyed):
    """A guard that parameters all have a gradient at entry, or that none has one."""

    parameters: tuple[torch.Tensor, ...]
    present: bool

    def fits(self) -> bool:
        """True when this holds now."""
        for parameter in self.parameters:  # a generator takes twice as long
            if (gradient_of(parameter) is not None) is not self.present:
                return False
        return True


@dataclass(frozen=True)
class TensorAt(Keyed):
    """The n-th tensor inside the value of a place, as the root of a leaf."""

    place: Item
    position: int

    def __getitem__(self, key: str) -> torch.Tensor:
        return tensors_inside(self.place.read())[self.position]


@dataclass(frozen=True)
class Rebound(Keyed):
    """The plain tensor under a name, as the root of a leaf."""

    name: Name

    def __getitem__(self, key: str) -> Any:
        value = follow(self.name.owner(), self.name.path)
        return value if is_plain_tensor(value) else None


@dataclass(frozen=True)
class Pinned(Keyed):
    """A tensor guarded by identity, as the root of a leaf."""

    tensor: torch.Tensor

    def __getitem__(self, key: str) -> object:
        return self.tensor


@dataclass(frozen=True)
class Pair(Keyed):
    """A guard that two places alias one tensor, or do not; an int is an argument of the call."""

    one: TensorAt | Named
    other: int | TensorAt | Named | Rebound | Pinned
    together: bool = True
    identical: bool = False
    """True to compare by object identity, as the step's ``is`` does; else by memory."""

    def fits(self, arguments: Sequence[torch.Tensor]) -> bool:
        """True when this holds now."""
        other = self.other
        try:
            one: Any = self.one["value"]
            held: Any = arguments[other] if isinstance(other, int) else other["value"]
        except (KeyError, IndexError, TypeError, ValueError):  # one of the places is gone
            return not self.together
        if self.identical:
            return self.together is (one is held)
        tensors = isinstance(one, torch.Tensor) and isinstance(held, torch.Tensor)
        return self.together is (tensors and where(one) == where(held))


@dataclass(frozen=True)
class Shares(Keyed):
    """A guard on a gradient that aliases the memory of another input or gradient."""

    parameter: torch.Tensor
    other: int | Leaf
    """An int is an argument of the call."""
    found: object
    """Its offset and layout in that memory, as `_lies_in` gives them."""

    @classmethod
    def of(cls, parameter: torch.Tensor, gradient: torch.Tensor, other: Leaf) -> Shares:
        """The guard from the present aliasing."""
        found = _lies_in(gradient, other.value)
        given = isinstance(other.root, list) and other.role is Role.INPUT
        return cls(parameter, other.path[0] if given else replace(other, value=None), found)

    def fits(self, arguments: Sequence[torch.Tensor]) -> bool:
        """True when the gradient has that place in memory now."""
        gradient, held = gradient_of(self.parameter), self.other
        other = arguments[held] if isinstance(held, int) else held.now()
        return gradient is not None and _lies_in(gradient, other) == self.found


def _lies_in(tensor: torch.Tensor, other: object) -> object:
    """The offset and layout inside the memory of another tensor; None where disjoint."""
    if not isinstance(other, torch.Tensor) or not (has_strides(tensor) and has_strides(other)):
        return None
    if storage_id(tensor) != storage_id(other):
        return None
    begins = [one.storage_offset() * one.itemsize for one in (tensor, other)]
    return begins[0] - begins[1], tensor.dtype, tuple(tensor.shape), tensor.stride()


def gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The ``.grad`` of a tensor, without torch's warning for one never filled."""
    found: torch.Tensor | None = None
    if tensor.is_leaf or tensor.retains_grad:
        found = GRAD.__get__(tensor)
    return found


def is_plain_tensor(value: object) -> bool:
    """True for a tensor of which a program needs its contents alone."""
    return type(value) is torch.Tensor and not value.requires_grad and not vars(value)


def first_places(items: Iterable[object]) -> tuple[int, ...]:
    """By item, the index of the first item that is the same tensor."""
    first: dict[int, int] = {}
    return tuple(
        first.setdefault(id(item), place) if isinstance(item, torch.Tensor) else place
        for place, item in enumerate(items)
    )


def tensors_inside(value: object) -> list[torch.Tensor]:
    """The tensors in an object, in the order of its parts."""
    if is_a(value, torch.Tensor):
        return [value]
    if is_plain_throughout(value):
        return []
    return [tensor for _, tensor in tensors_in(value)]


def hidden_in(value: object) -> str:
    """The description of an object that may hide tensors, such as a function; else empty."""
    try:
        check(value, "")
    except Unfit as unfit:
        return unfit.what.strip()
    return ""


def described(value: object) -> object:
    """A value without its tensors; the object itself where that cannot be described."""
    try:
        return key_of(value, [], {})
    except Unfit:
        return Same(value)


def where(tensor: torch.Tensor) -> tuple[object, ...]:
    """A key that is equal for a tensor and its ``detach()``."""
    if not has_strides(tensor):
        return (id(tensor),)
    place = storage_id(tensor), tensor.storage_offset()
    return (*place, tuple(tensor.shape), tensor.stride(), tensor.dtype)
