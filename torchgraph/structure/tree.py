"""Trees: any object as nodes, from which it is put together again with other tensors in it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..objects import is_a
from .keys import Unfit, key_name, key_of, leaf_key
from .kinds import SYMBOLS, Kind, Part, kind_of


class Node:
    """In a tree, what is no leaf. A leaf stands for itself."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Slot(Node):
    """The place of the n-th tensor."""

    position: int


@dataclass(frozen=True, slots=True)
class Given(Node):
    """The n-th object that was there before, or its n-th tensor."""

    number: int
    is_tensor: bool = False


@dataclass(eq=False, slots=True)
class HeldObject(Node):
    """An object kept as it is, not taken apart."""

    value: object


@dataclass(frozen=True, slots=True)
class Again(Node):
    """The object that another node of the tree makes, be it this one's turn first."""

    number: int
    made: Made = field(compare=False, repr=False)


@dataclass(eq=False, slots=True)
class Made(Node):
    """An object that is put together of its parts."""

    number: int
    kind: Kind
    parts: list[Part]
    original: object = None
    """The object itself, where there is no tensor in it."""
    held: bool = False
    """True for an object that no call makes: each one gives the same."""

    @property
    def cls(self) -> type:
        return self.kind.cls


class Apart:
    """Takes objects apart, each object once.

    Args:
        known: objects and tensors, by identity, that stand for themselves.
        unique: a tensor at two places is one tensor of the tree.
        held: identities of objects that stand for themselves if no tensor is in them.
        numbers: a number that moves is no leaf, but has a place as a tensor has.
    """

    def __init__(
        self,
        known: Mapping[int, Node] | None = None,
        *,
        unique: bool = False,
        held: Collection[int] = (),
        numbers: bool = False,
    ) -> None:
        self.roots: list[object] = []
        self.tensors: list[Any] = []
        """With numbers that move, while a step is recorded."""
        self.places: list[str] = []
        """The path of each tensor."""
        self.objects: list[tuple[object, Made]] = []
        """Each object that is no leaf, before what is in it."""
        self.paths: list[str] = []
        """The path at which each object was found."""
        self.known = known or {}
        self._unique, self._held, self._numbers = unique, held, numbers
        self._slots: dict[int, Slot] = {}
        self._made: dict[int, Made] = {}

    def root(self, value: object, path: str) -> object:
        """Take one more object apart; gives its node."""
        node = self._node(value, path)
        self.roots.append(node)
        return node

    def parts_of(self, value: object, kind: Kind, path: str) -> list[Part]:
        """The nodes of an object's parts, be it known itself or not."""
        return [(step, self._node(part, f"{path}{step}")) for step, part in kind.parts(value)]

    def _node(self, value: object, path: str) -> object:
        known = self.known.get(id(value))
        if known is not None:
            return known
        if is_a(value, torch.Tensor):
            return self._slot(value, path)
        kind = kind_of(type(value))
        if kind is None:
            moves = self._numbers and issubclass(type(value), SYMBOLS)
            return self._slot(value, path) if moves else value
        again = self._made.get(id(value))
        if again is not None:
            return Again(again.number, again)
        made = self._made[id(value)] = Made(len(self.objects), kind, [])
        self.paths.append(path)
        self.objects.append((value, made))  # which keeps it, and its id, for as long as this takes
        made.parts = self.parts_of(value, kind, path)
        if not any(_is_of_call(part) for _, part in made.parts):
            made.original = value
            made.held = id(value) in self._held
        return made

    def _slot(self, tensor: Any, path: str) -> Slot:
        if self._unique and id(tensor) in self._slots:
            return self._slots[id(tensor)]
        slot = self._slots[id(tensor)] = Slot(len(self.tensors))
        self.tensors.append(tensor)
        self.places.append(path)
        return slot


def _is_of_call(node: object) -> bool:
    """True for the node of an object with a tensor in it, or one that was there before."""
    if is_a(node, Made):
        return node.original is None
    return issubclass(type(node), (Slot, Given, Again))


def tensors_in(value: object, path: str = "") -> list[tuple[str, torch.Tensor]]:
    """(path, tensor) of each tensor in an object."""
    apart = Apart()
    apart.root(value, path)
    return list(zip(apart.places, apart.tensors, strict=True))


def mutable_parts(value: object) -> Iterator[tuple[Kind, object, list[Part]]]:
    """(kind, object, what it holds) of an object and all objects in it that may change."""
    apart = Apart()
    apart.root(value, "")
    for held, made in apart.objects:
        if made.kind.mutable:
            yield made.kind, held, made.kind.parts(held)


def leaves_in(value: object, path: str) -> Iterator[tuple[str, object]]:
    """(path, leaf) of all leaves of an object: tensors, and what is not taken apart."""
    apart = Apart()
    for place, leaf in leaves_of(apart.root(value, path), path):
        if is_a(leaf, Slot):
            yield place, apart.tensors[leaf.position]
        elif not is_a(leaf, Node):
            yield place, leaf


def leaves_of(node: object, path: str = "") -> Iterator[tuple[str, object]]:
    """(path, leaf or node without parts) of a tree; each object that is made is named, too."""
    if type(node) is Made:
        yield path, node
        for step, part in node.parts:
            yield from leaves_of(part, f"{path}{step}")
    else:
        yield path, node


def is_taken_apart(value: object) -> bool:
    """False for a leaf, and for a tensor."""
    return not is_a(value, torch.Tensor) and kind_of(type(value)) is not None


def tree_key(node: object) -> object:
    """Equal for nodes of which equal objects are made, and the same ones that are held.

    Raises:
        Unfit: a leaf has no key.
    """
    if is_a(node, Slot):
        return "tensor", node.position
    if is_a(node, Again):
        return "again", node.number
    if is_a(node, HeldObject) or (is_a(node, Made) and node.held):
        return "held", id(node.value if isinstance(node, HeldObject) else node.original)
    if is_a(node, Made):
        parts = ((step.how, key_name(step.name), tree_key(part)) for step, part in node.parts)
        return node.cls, node.number, tuple(parts)
    return leaf_key(node)


def hold(one: object, other: object) -> None:
    """Two calls gave the same: an object that is one in both was made by neither."""
    if not is_a(one, Made) or not is_a(other, Made):
        return
    if one.original is not None and one.original is other.original:
        one.held = other.held = True


def hold_in(one: object, other: object) -> None:
    """Apply `hold` to the leaves of two nodes of one structure."""
    for (_, mine), (_, its) in zip(leaves_of(one), leaves_of(other), strict=True):
        hold(mine, its)


def check(value: object, path: str) -> None:
    """Raise Unfit, with the path first, where no tensor could be found."""
    for place, leaf in leaves_in(value, path):
        if not is_a(leaf, torch.Tensor):
            try:
                leaf_key(leaf)
            except Unfit as unfit:
                raise Unfit(f"{place} {unfit.what}", unfit.fix) from None


def fault(args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[str, Unfit]:
    """The path of the first part of a call that has no key, and why."""
    for path, value in named(args, kwargs):
        leaves = [*leaves_in(value, path), (path, value)]  # a key of a dict is part of no leaf
        for place, leaf in leaves:
            try:
                key_of(leaf, [], {})
            except Unfit as unfit:
                return place, unfit
    raise AssertionError("each part has a key")


def named(args: Sequence[object], kwargs: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """(path, value) of each argument."""
    yield from ((f"args[{number}]", value) for number, value in enumerate(args))
    yield from ((f"kwargs[{name!r}]", value) for name, value in kwargs.items())
