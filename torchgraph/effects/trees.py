"""Trees of the objects that a step leaves in places: structures with slots for tensors.

All trees of a step share nodes, so an object at two places stays one object, and objects from
before the step stay themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..guards.aspects import is_container, look
from ..live.inputs import Call
from ..live.step import Leaf
from ..objects import is_a
from ..structure import Apart, HeldObject, Together, hold_in, is_taken_apart, tree_key
from ..structure.kinds import Kind, Part
from ..structure.nested import map_nested


@dataclass(frozen=True)
class ArgumentSlot:
    """A slot for the n-th argument tensor of a call."""

    position: int


@dataclass(frozen=True)
class OutputSlot:
    """A slot for the n-th tensor that the program returned."""

    position: int


@dataclass(frozen=True)
class AliasSlot:
    """A slot for an alias of a state's or an argument's memory."""

    name: str
    holder: int | Leaf = field(compare=False)
    """The aliased leaf; an int is an argument."""
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """Elements from the start of the aliased tensor."""
    same: bool = False
    """True where it is the aliased tensor itself."""
    number: int = 0
    """The index of the alias among those of the step, which may store one several times."""

    def tensor(self, call: Call) -> torch.Tensor:
        """The alias in this call."""
        holder = self.holder
        found: torch.Tensor = call.tensors[holder] if isinstance(holder, int) else holder.read()
        if self.same:
            return found
        begin = found.storage_offset() + self.offset
        alias: torch.Tensor = found.detach().as_strided(self.size, self.stride, begin)
        return alias


@dataclass(frozen=True)
class Fixed:
    """A constant."""

    value: object = field(compare=False)
    key: object
    """A hash key, equal for equal constants."""


@dataclass(frozen=True)
class OutputTree:
    """An object that each call makes anew."""

    root: object = field(compare=False)
    """The root node of the object, from `structure`."""
    key: object
    slots: tuple[object, ...]
    """The slots of its tensors, but for those of earlier trees of the step."""
    trees: Trees = field(compare=False, repr=False)


@dataclass(frozen=True)
class ContentsTree:
    """The contents of containers from before the step: (kind, container, nodes of its parts)."""

    parts: list[tuple[Kind, object, list[Part]]] = field(compare=False)
    key: object
    slots: tuple[object, ...]
    trees: Trees = field(compare=False, repr=False)


def constant(value: object) -> Fixed:
    """``value`` as a constant tree."""
    return Fixed(value, look(value))


Slots = Callable[[Any], object]
"""Gives the slot of a tensor or symbolic number. May raise Unfit."""


class Trees:
    """The trees of the objects that one step leaves.

    Args:
        old: by identity, the objects from before the step that names lead to.
        is_number: true for a stand-in for a number that the program computes.
    """

    def __init__(self, old: Mapping[int, object], is_number: Callable[[object], bool]) -> None:
        known = {
            key: HeldObject(value)
            for key, value in old.items()
            if is_taken_apart(value) and not is_container(value)
        }
        held: Collection[int] = {key for key, value in old.items() if is_container(value)}
        self._old, self._is_number = old, is_number
        self._apart = Apart(known, unique=True, held=held, numbers=True)
        self.slots: list[object] = []

    @property
    def objects(self) -> list[object]:
        """The objects that the trees consist of."""
        return [value for value, _ in self._apart.objects]

    def has(self, value: object) -> bool:
        """True for an object from before the step."""
        return id(value) in self._old

    def of(self, value: object, slot: Slots) -> object:
        """The tree of ``value``. Raises Unfit."""
        if is_a(value, torch.Tensor) or self._is_number(value):
            return slot(value)
        root = self._apart.root(value, "")
        key = tree_key(root)
        return OutputTree(root, key, self._more(slot), self)

    def contents(self, held: Sequence[tuple[Kind, object]], slot: Slots) -> ContentsTree:
        """The tree of the contents of (kind, object) pairs. Raises Unfit."""
        parts, keys = [], []
        for kind, value in held:
            found = self._apart.parts_of(value, kind, "")
            parts.append((kind, value, found))
            keys.append((id(value), [(step, tree_key(node)) for step, node in found]))
        return ContentsTree(parts, keys, self._more(slot), self)

    def _more(self, slot: Slots) -> tuple[object, ...]:
        known = len(self.slots)
        self.slots += map(slot, self._apart.tensors[known:])
        return tuple(self.slots[known:])


class Filling:
    """The evaluation of trees with the outputs of one call.

    Args:
        tensors: all outputs of the program.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], call: Call) -> None:
        self._tensors, self.call = tensors, call
        self._aliases: dict[int, torch.Tensor] = {}
        self._together: dict[int, Together] = {}

    def filled(self, tree: Any) -> Any:
        """The value of ``tree``, its slots filled by outputs, arguments and aliases."""
        kind = type(tree)
        if kind is OutputSlot:
            return self._tensors[tree.position]
        if kind is ArgumentSlot:
            return self.call.tensors[tree.position]
        if kind is AliasSlot:
            if tree.number not in self._aliases:
                self._aliases[tree.number] = tree.tensor(self.call)
            return self._aliases[tree.number]
        if kind is Fixed:
            return tree.value
        if kind is OutputTree:
            return self._of(tree.trees).root(tree.root)
        if kind is ContentsTree:
            together = self._of(tree.trees)
            return [(kind, held, together.parts(parts)) for kind, held, parts in tree.parts]
        return map_nested(tree, OutputSlot, lambda slot: self._tensors[slot.position])

    def _of(self, trees: Trees) -> Together:
        found = self._together.get(id(trees))
        if found is None:
            found = self._together[id(trees)] = Together(list(map(self.filled, trees.slots)))
        return found


def freeze(one: object, other: object) -> None:
    """Make constants of objects that are one in both trees: they predate the steps."""
    if isinstance(one, OutputTree) and isinstance(other, OutputTree):
        hold_in(one.root, other.root)
