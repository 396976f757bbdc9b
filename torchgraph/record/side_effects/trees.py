"""What a step leaves in places, as replays make it anew: all of one step is taken apart in one go.

An object at two places is one object then, and what was there before the step stays what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...guards.aspects import is_container, look
from ...live.inputs import Call
from ...live.step import Leaf
from ...structure import Apart, HeldObject, Together, hold_in, is_taken_apart, tree_key
from ...structure.kinds import Kind, Part
from ...structure.nested import map_nested
from ..tape.number import node_of


@dataclass(frozen=True)
class ArgumentSlot:
    """The place of the n-th tensor among the arguments of a call."""

    position: int


@dataclass(frozen=True)
class OutputSlot:
    """The place of the n-th returned tensor in the structure that `build` returned."""

    position: int


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

    def tensor(self, call: Call) -> torch.Tensor:
        """The tensor that lies there now."""
        holder = self.holder
        found: torch.Tensor = call.tensors[holder] if isinstance(holder, int) else holder.read()
        if self.same:
            return found
        begin = found.storage_offset() + self.offset
        alias: torch.Tensor = found.detach().as_strided(self.size, self.stride, begin)
        return alias


@dataclass(frozen=True)
class Fixed:
    """A value that is the same at each call."""

    value: object = field(compare=False)
    key: object
    """Equal for equal ones."""


@dataclass(frozen=True)
class OutputTree:
    """An object that each call makes."""

    root: object = field(compare=False)
    """The node of the object, as `structure` takes it apart."""
    key: object
    slots: tuple[object, ...]
    """Where its tensors come from, but for those that other trees of the step have as well."""
    trees: Trees = field(compare=False, repr=False)


@dataclass(frozen=True)
class ContentsTree:
    """What is in containers that were there before: (kind, container, nodes of its parts)."""

    parts: list[tuple[Kind, object, list[Part]]] = field(compare=False)
    key: object
    slots: tuple[object, ...]
    trees: Trees = field(compare=False, repr=False)


def constant(value: object) -> Fixed:
    """``value`` at each call, where each recording leaves an equal one."""
    return Fixed(value, look(value))


Slots = Callable[[Any], object]
"""Where a tensor, or a number that moves, comes from. May raise Unfit."""


class Trees:
    """Takes apart what one step leaves.

    Args:
        old: by identity, what was there before the step, as far as names have led there.
    """

    def __init__(self, old: Mapping[int, object]) -> None:
        known = {
            key: HeldObject(value)
            for key, value in old.items()
            if is_taken_apart(value) and not is_container(value)
        }
        held: Collection[int] = {key for key, value in old.items() if is_container(value)}
        self._old = old
        self._apart = Apart(known, unique=True, held=held, numbers=True)
        self.slots: list[object] = []

    @property
    def objects(self) -> list[object]:
        """All that was taken apart."""
        return [value for value, _ in self._apart.objects]

    def has(self, value: object) -> bool:
        """True for what was there before."""
        return id(value) in self._old

    def of(self, value: object, slot: Slots) -> object:
        """``value`` as a replay makes it. Raises Unfit."""
        if isinstance(value, torch.Tensor) or node_of(value) is not None:
            return slot(value)
        root = self._apart.root(value, "")
        key = tree_key(root)
        return OutputTree(root, key, self._more(slot), self)

    def contents(self, held: Sequence[tuple[Kind, object]], slot: Slots) -> ContentsTree:
        """What is in objects now: (kind, object). Raises Unfit."""
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
    """Puts what the program returned in one call into its places.

    Args:
        tensors: all that it returned.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], call: Call) -> None:
        self._tensors, self.call = tensors, call
        self._aliases: dict[int, torch.Tensor] = {}
        self._together: dict[int, Together] = {}

    def filled(self, tree: Any) -> Any:
        """``tree`` with them for each `OutputSlot` in it, and arguments of the call."""
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
    """Two calls leave the like: what is one object in both was there before, no call makes it."""
    if isinstance(one, OutputTree) and isinstance(other, OutputTree):
        hold_in(one.root, other.root)
