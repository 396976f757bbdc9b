"""Putting the objects of a tree together, with other tensors in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import cast

import torch

from ..objects import is_a
from .kinds import Kind, Part
from .tree import Again, Apart, Given, HeldObject, Made, Node, Slot


class Together:
    """Puts the objects of one tree together, each once.

    Args:
        tensors: for its slots.
        objects, given: for what was there before.
        originals: objects without a tensor are themselves, not copies.
    """

    def __init__(
        self,
        tensors: Sequence[object],
        objects: Sequence[object] = (),
        given: Sequence[torch.Tensor] = (),
        originals: bool = False,
    ) -> None:
        self._tensors, self._objects, self._given = tensors, objects, given
        self._originals = originals
        self._made: dict[int, object] = {}
        self._begun: set[int] = set()
        """Objects whose parts are being made: in a cycle, one of them asks for the whole."""
        self._waiting: list[tuple[Made, object]] = []

    def root(self, node: object) -> object:
        """The object of a node, whole."""
        made = self._of(node)
        self._fill()
        return made

    def parts(self, parts: list[Part]) -> list[Part]:
        """The parts of an object, whole."""
        found = [(step, self._of(part)) for step, part in parts]
        self._fill()
        return found

    def _of(self, node: object) -> object:
        if not is_a(node, Node):
            return node
        if type(node) is HeldObject:
            return node.value
        if type(node) is Slot:
            return self._tensors[node.position]
        if type(node) is Given:
            return (self._given if node.is_tensor else self._objects)[node.number]
        node = node.made if type(node) is Again else node
        assert isinstance(node, Made)
        if node.number in self._made:
            return self._made[node.number]
        if node.held or (self._originals and node.original is not None):
            return self._as_it_is(node)
        if node.kind.mutable:
            made = node.kind.blank(node.parts)
            self._waiting.append((node, made))
        else:
            made = self._at_once(node)
        self._made[node.number] = made
        return made

    def _at_once(self, node: Made) -> object:
        """An object that cannot be filled later. Raises _Unmade where a part of it asks for it."""
        if node.number in self._begun:
            raise _Unmade
        self._begun.add(node.number)
        try:
            parts = [(step, self._of(part)) for step, part in node.parts]
            if node.kind.whole:
                self._fill()
            return node.kind.make(parts)
        finally:
            self._begun.remove(node.number)

    def _as_it_is(self, node: Made) -> object:
        """The original object; what is in it may be at other places too."""
        self._made[node.number] = node.original
        for _, part in node.parts:
            if isinstance(part, Made):
                self._as_it_is(part)
        return node.original

    def _fill(self) -> None:
        """Fill objects that are still empty; those that hash their parts come last.

        What holds an object that has just been begun stays empty until there is one.
        """
        late: list[tuple[Made, object, list[Part]]] = []
        cyclic: list[tuple[Made, object]] = []
        while self._waiting or late:
            if not self._waiting:
                node, made, parts = late.pop()
                node.kind.refill(made, parts)
                continue
            node, made = self._waiting.pop(0)
            try:
                parts = [(step, self._of(part)) for step, part in node.parts]
            except _Unmade:
                cyclic.append((node, made))
                continue
            if node.kind.late:
                late.append((node, made, parts))
            else:
                node.kind.refill(made, parts)
        self._waiting = cyclic


class _Unmade(Exception):
    """An object that is asked for has been begun, and is not there yet."""


Maker = Callable[[Sequence[object]], object]
"""Makes the object of a node, with these tensors."""


def maker(node: object) -> Maker | None:
    """`Together` for a node, faster; None where an object is at two places, or was there before."""
    if not is_a(node, Node):
        return lambda tensors: node
    if type(node) is Slot:
        return itemgetter(node.position)
    if not isinstance(node, Made):
        return None
    if node.held:
        original = node.original
        return lambda tensors: original
    makers = [maker(part) for _, part in node.parts]
    if None in makers:
        return None
    return _assembled(node.kind, node.parts, cast("list[Maker]", makers))


def _assembled(kind: Kind, parts: list[Part], makers: list[Maker]) -> Maker:
    names = [step.name for step, _ in parts]
    if kind.cls is dict:
        pairs = list(zip(names, makers, strict=True))
        return lambda tensors: {name: make(tensors) for name, make in pairs}
    if kind.cls is list:
        return lambda tensors: [make(tensors) for make in makers]
    if kind.cls is tuple:
        return lambda tensors: tuple([make(tensors) for make in makers])
    steps = [step for step, _ in parts]

    def make_object(tensors: Sequence[object]) -> object:
        made = [(step, make(tensors)) for step, make in zip(steps, makers, strict=True)]
        if not kind.mutable:
            return kind.make(made)
        empty = kind.blank(made)
        kind.refill(empty, made)
        return empty

    return make_object


def map_tensors(
    value: object, replace: Callable[[torch.Tensor], object], *, unique: bool = False
) -> object:
    """A structure of new objects with each tensor replaced; one at two places only once."""
    apart = Apart(unique=unique)
    root = apart.root(value, "")
    return Together([replace(tensor) for tensor in apart.tensors]).root(root)
