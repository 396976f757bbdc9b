"""Places in which values are kept between calls, and what has to lie there when one begins."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from ..._torch import storage_id
from ...guards.aspects import Same
from ...guards.names import CONTENT, By, Name, Path, follow
from ...ir.aliasing import has_strides
from ...ir.program import Role
from ...live.inputs import Call
from ...live.named import put
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

    @property
    def _path(self) -> Path:
        return CONTENT if isinstance(self.holder, types.CellType) else ((By.ITEM, self.item),)

    def read(self) -> object:
        """What is there now; `ABSENT` when nothing is."""
        return follow(self.holder, self._path)

    def write(self, value: object, call: Call | None = None) -> None:
        """Put ``value`` there."""
        put(self.holder, self._path, value)


class Keyed:
    """A dataclass that is compared by its fields: what is the user's by which object it is."""

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal ones."""
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
    """The end of a list."""

    name: str = field(compare=False)
    holder: Any
    number: int
    """How many the step appends before this one."""

    def write(self, value: object, call: Call) -> None:
        """Append ``value``."""
        self.holder.append(value)


@dataclass(frozen=True)
class MovedToEnd(Keyed):
    """The last places of a dict, in its order."""

    holder: dict[object, object]

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
        return described(self.place.read()) == self.found


@dataclass(frozen=True)
class Named(Keyed):
    """What lies under a name, as a place, and as the container of a leaf."""

    name: Name

    def __getitem__(self, key: str) -> object:
        return follow(self.name.owner(), self.name.path)

    def write(self, value: object, call: Call) -> None:
        """Put ``value`` there; `ABSENT` takes it away."""
        owner = self.name.owner()
        if owner is not None:
            put(owner, self.name.path, value)


@dataclass(frozen=True)
class Bounded(Keyed):
    """A deque that drops as many as it did then, when as many are appended."""

    holder: deque[object]
    appended: int
    dropped: int

    def fits(self) -> bool:
        """True when it does."""
        length, most = len(self.holder) + self.appended, self.holder.maxlen
        return most is not None and max(length - most, 0) == self.dropped


@dataclass(frozen=True)
class Filled(Keyed):
    """A list of which places are written, counted from either end."""

    holder: Any
    places: tuple[int, ...]
    """What `first_places` gives: what is moved to where the same tensor lay seems to stay."""

    def fits(self) -> bool:
        """True when it is as long, and the same tensors lie twice in it."""
        return first_places(self.holder) == self.places


@dataclass(frozen=True)
class HaveGradients(Keyed):
    """Parameters that all had a gradient when the step began, or none of which had one."""

    parameters: tuple[torch.Tensor, ...]
    present: bool

    def fits(self) -> bool:
        """True when it is so now."""
        for parameter in self.parameters:  # a generator takes twice as long
            if (gradient_of(parameter) is not None) is not self.present:
                return False
        return True


@dataclass(frozen=True)
class TensorAt(Keyed):
    """The n-th tensor of what lies at a place, as the container of a leaf."""

    place: Item
    position: int

    def __getitem__(self, key: str) -> torch.Tensor:
        return tensors_inside(self.place.read())[self.position]


@dataclass(frozen=True)
class Rebound(Keyed):
    """The plain tensor under a name, as the container of a leaf."""

    name: Name

    def __getitem__(self, key: str) -> Any:
        value = follow(self.name.owner(), self.name.path)
        return value if is_plain_tensor(value) else None


@dataclass(frozen=True)
class Pinned(Keyed):
    """A tensor that has to be this one, as the container of a leaf."""

    tensor: torch.Tensor

    def __getitem__(self, key: str) -> object:
        return self.tensor


@dataclass(frozen=True)
class Pair(Keyed):
    """Two places that held one tensor, or two; a number stands for an argument of the call."""

    one: TensorAt | Named
    other: int | TensorAt | Named | Rebound | Pinned
    together: bool = True
    identical: bool = False
    """Which object it is counts, as the step asks by ``is``; else where it lies in memory."""

    def fits(self, arguments: Sequence[torch.Tensor]) -> bool:
        """True when they do so now."""
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

    def fits(self, arguments: Sequence[torch.Tensor]) -> bool:
        """True when it lies there now."""
        gradient, held = gradient_of(self.parameter), self.other
        other = arguments[held] if isinstance(held, int) else held.now()
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
