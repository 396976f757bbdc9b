"""Places in which tensors are kept between calls."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from ..._torch import storage_id
from ...guards.looks import Same
from ...guards.names import Name, follow
from ...ir.aliasing import has_strides
from ...ir.program import Role
from ...live.inputs import Call
from ...live.step import Leaf
from ...structure import Unfit, check, key_of, tensors_in
from ..chains.items import is_plain_throughout

GRAD: Any = torch.Tensor.grad  # a C property


@dataclass(frozen=True)
class Item:
    """An entry of a dict or list, or what a closure's variable holds."""

    name: str
    holder: Any
    item: Any

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal places."""
        return (id(self.holder), self.item)

    def read(self) -> object:
        """What is there now; ValueError, KeyError or IndexError when nothing is."""
        if isinstance(self.holder, types.CellType):
            return self.holder.cell_contents
        if not isinstance(self.holder, dict):
            return self.holder[self.item]
        if not dict.__contains__(self.holder, self.item):  # a defaultdict would make it
            raise KeyError(self.item)
        return dict.get(self.holder, self.item)

    def write(self, value: object, call: Call | None = None) -> None:
        """Put ``value`` there."""
        if isinstance(self.holder, types.CellType):
            self.holder.cell_contents = value
        else:
            self.holder[self.item] = value


@dataclass(frozen=True)
class Appended:
    """The end of a list."""

    name: str
    holder: list[object]
    number: int
    """How many the step appends before this one."""

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal places."""
        return (id(self.holder), "append", self.number)

    def write(self, value: object, call: Call) -> None:
        """Append ``value``."""
        self.holder.append(value)


@dataclass(frozen=True)
class Behind:
    """The last places of a dict, in its order."""

    holder: dict[object, object]

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal places."""
        return (id(self.holder), "behind")

    def write(self, value: Any, call: Call) -> None:
        """Put these keys there: the step took them out and put them in again."""
        for key in value:
            if key in self.holder:
                self.holder[key] = self.holder.pop(key)


@dataclass(frozen=True)
class ValueAtEntry:
    """What a place must hold when the step begins, but for the tensors in it."""

    place: Item
    found: object
    """What was there, as `described` tells it."""

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal ones."""
        return (*self.place.key, self.found)

    def fits(self) -> bool:
        """True when there is the like of what was there."""
        return described(held_at(self.place)) == self.found


@dataclass(frozen=True)
class Bounded:
    """A deque that drops as many as it did then, when as many are appended."""

    holder: deque[object]
    appended: int
    dropped: int

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal ones."""
        return (id(self.holder), self.appended, self.dropped)

    def fits(self) -> bool:
        """True when it does."""
        length, most = len(self.holder) + self.appended, self.holder.maxlen
        return most is not None and max(length - most, 0) == self.dropped


@dataclass(frozen=True)
class Filled:
    """A list of which places are written, counted from either end."""

    holder: Any
    places: tuple[int, ...]
    """What `first_places` gives: what is moved to where the same tensor lay seems to stay."""

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal ones."""
        return (id(self.holder), "filled", self.places)

    def fits(self) -> bool:
        """True when it is as long, and the same tensors lie twice in it."""
        return first_places(self.holder) == self.places


@dataclass(frozen=True)
class TensorAt:
    """The n-th tensor of what lies at a place, as the container of a leaf."""

    place: Item
    position: int

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal ones."""
        return (*self.place.key, self.position)

    def __getitem__(self, key: str) -> torch.Tensor:
        return tensors_inside(self.place.read())[self.position]


@dataclass(frozen=True)
class Rebound:
    """The tensor under a name, as the container of a leaf."""

    name: Name

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal ones."""
        return self.name.key

    def __getitem__(self, key: str) -> Any:
        value = follow(self.name.owner(), self.name.path)
        return value if is_plain_tensor(value) else None


@dataclass(frozen=True)
class NamedArgument(Rebound):
    """The same where that is an argument of the call."""

    def __getitem__(self, key: str) -> object:
        return follow(self.name.owner(), self.name.path)


@dataclass(frozen=True)
class Pinned:
    """A tensor that has to be this one, as the container of a leaf."""

    tensor: torch.Tensor

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal ones."""
        return ("pinned", id(self.tensor))

    def __getitem__(self, key: str) -> object:
        return self.tensor


class Pair(NamedTuple):
    """Two places that held one tensor, or two; a number stands for an argument of the call."""

    one: TensorAt | Rebound
    other: int | TensorAt | Rebound | Pinned
    together: bool = True

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal ones."""
        other = self.other if isinstance(self.other, int) else self.other.key
        return self.one.key, other, self.together

    def fits(self, arguments: Sequence[torch.Tensor]) -> bool:
        """True when they do so now."""
        held = held_at_both(self.one, self.other, arguments)
        if held is None:
            return not self.together
        one, other = held
        if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
            return not self.together
        return self.together is (where(one) == where(other))


class Shares(NamedTuple):
    """A gradient that lay in the memory of another input, which may be another gradient."""

    parameter: torch.Tensor
    other: int | Leaf
    """A number stands for an argument of the call."""
    found: object
    """Where in that memory it lay, as `_lies_in` tells it."""

    @classmethod
    def of(cls, parameter: torch.Tensor, gradient: torch.Tensor, other: Leaf) -> Shares:
        """How they share memory now."""
        found = _lies_in(gradient, other.value)
        given = isinstance(other.root, list) and other.role is Role.INPUT
        return cls(parameter, other.path[0] if given else replace(other, value=None), found)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal ones."""
        other = self.other if isinstance(self.other, int) else self.other.fqn
        return id(self.parameter), other, self.found

    def fits(self, arguments: Sequence[torch.Tensor]) -> bool:
        """True when it lies there now."""
        gradient = gradient_of(self.parameter)
        try:
            other = arguments[self.other] if isinstance(self.other, int) else self.other.read()
        except (KeyError, IndexError, TypeError, ValueError):
            return False
        return gradient is not None and _lies_in(gradient, other) == self.found


def _lies_in(tensor: torch.Tensor, other: object) -> object:
    """Where in the memory of another one, and how; None where it does not."""
    if not isinstance(other, torch.Tensor) or not (has_strides(tensor) and has_strides(other)):
        return None
    if storage_id(tensor) != storage_id(other):
        return None
    begins = [one.storage_offset() * one.itemsize for one in (tensor, other)]
    return begins[0] - begins[1], tensor.dtype, tuple(tensor.shape), tensor.stride()


def gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Its ``.grad``; torch warns of asking where that is never filled."""
    found: torch.Tensor | None = None
    if tensor.is_leaf or tensor.retains_grad:
        found = GRAD.__get__(tensor)
    return found


def is_plain_tensor(value: object) -> bool:
    """True for a tensor of which a program needs to know no more than what it holds."""
    return type(value) is torch.Tensor and not value.requires_grad and not vars(value)


def first_places(items: Iterable[object]) -> tuple[int, ...]:
    """For each item the first place where the same tensor lies."""
    first: dict[int, int] = {}
    return tuple(
        first.setdefault(id(item), place) if isinstance(item, torch.Tensor) else place
        for place, item in enumerate(items)
    )


def held_at(place: Item) -> object:
    """What is there now; None when nothing is."""
    try:
        return place.read()
    except (KeyError, IndexError, ValueError):
        return None


def held_at_both(
    one: TensorAt | Rebound,
    other: int | TensorAt | Rebound | Pinned,
    arguments: Sequence[torch.Tensor],
) -> tuple[object, object] | None:
    """What two places hold now; None where one of them is gone."""
    try:
        return one["value"], arguments[other] if isinstance(other, int) else other["value"]
    except (KeyError, IndexError, TypeError, ValueError):
        return None


def tensors_inside(value: object) -> list[torch.Tensor]:
    """Those in an object, in the order of its parts."""
    if isinstance(value, torch.Tensor):
        return [value]
    if is_plain_throughout(value):
        return []
    return [tensor for _, tensor in tensors_in(value)]


def hidden_in(value: object) -> str:
    """What in an object may hide tensors, a function that holds one say; empty for nothing."""
    try:
        check(value, "")
    except Unfit as unfit:
        return unfit.what.strip()
    return ""


def described(value: object) -> object:
    """All of a value but its tensors; the object itself where that cannot be told."""
    try:
        return key_of(value, [], {})
    except Unfit:
        return Same(value)


def where(tensor: torch.Tensor) -> tuple[object, ...]:
    """Equal for a tensor and what ``detach()`` makes of it."""
    if not has_strides(tensor):
        return (id(tensor),)
    place = storage_id(tensor), tensor.storage_offset()
    return (*place, tuple(tensor.shape), tensor.stride(), tensor.dtype)
