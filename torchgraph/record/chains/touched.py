"""Records of the names that a step has read or written, and closure variables among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import FunctionType, MappingProxyType
from typing import Any, NamedTuple
from weakref import ProxyTypes

import torch

from ...errors import SourceLine
from ...guards.aspects import Aspect, Never, Same, is_buffer, is_generator, laid_out, look, shown
from ...guards.names import CONTENT, By, Name, Path, follow
from ...objects import is_a
from .chains import Use
from .inside import lies_in, tensors_under

Counts = Counter[tuple[int, str]]
"""The number of times that ``+=`` has changed an attribute, by object and name."""
RowKey = tuple[int, Path, bool]
"""(identity of an owner, a path from it, whether its contents count): a row of the access log."""
Touches = list[tuple[RowKey, Use]]
"""The rows of the places that a line may assign."""


class Touched(NamedTuple):
    """A place that a step has read or written by name."""

    name: Name
    read: bool
    container: object
    """The mutable container that was at the place first."""
    outer: bool
    """True for a place that existed before the step."""
    counted: bool = False
    """True where the step only incremented the place: ``x += 1``."""
    alike: object = None
    """The layout of a tensor, or of a container's tensors, for `Aspect.LIKENESS`."""
    compared: bool = False
    """True where the step compares the first object by identity."""
    length: int | None = None
    """The first length of a list, where an item that the step reads depends on it."""
    same_object: bool = False
    """True where the present object existed before, here or elsewhere."""
    within: Mapping[tuple[object, ...], int] = MappingProxyType({})
    """The containers inside the first object, as `containers_within` gives them."""
    identified: bool = False
    """True where the step compares a number by identity, so it must not be symbolic."""

    @property
    def place(self) -> tuple[int, Path]:
        """A key that is equal for equal places."""
        return id(self.name.owner()), self.name.path


class Met(NamedTuple):
    """All that one step has read or written by name."""

    touched: list[Touched]
    counts: Counts
    compared: frozenset[int]
    """Identities of the objects that the step compares by identity."""
    storages: frozenset[int] = frozenset()
    """The storages of all inputs."""


def _is_in(found: Any, value: object) -> bool:
    """True for a look at an object, or at a tuple that holds it."""
    if isinstance(found, Same):
        return found() is value
    return type(found) is tuple and any(_is_in(one, value) for one in found)


class Cell:
    """A closure variable whose function is not known yet."""

    def __init__(self, name: str, found: Any) -> None:
        self.name = name
        self.last = found
        """The look at its last content."""

    def holds(self, value: object) -> bool:
        """True where ``value`` was its last content, or in a tuple there."""
        return _is_in(self.last, value)

    def within(self, functions: Sequence[FunctionType]) -> list[object]:
        """The cells that may be the variable: several functions may share one code object."""
        return [
            cell
            for function in functions
            for name, cell in zip(
                function.__code__.co_freevars, function.__closure__ or (), strict=False
            )
            if name == self.name and in_cell(follow(cell, CONTENT)) == self.last
        ]


def in_cell(value: object) -> object:
    """The look at a closure variable: a container by identity, whatever it holds."""
    if is_generator(value) or is_buffer(value):
        return Same(value)
    return look(value, deep=False, level=1)


def settings(functions: Sequence[FunctionType]) -> Iterator[Name]:
    """The code and default arguments of functions, as names."""
    for function in functions:
        for attribute in ("__code__", "__defaults__", "__kwdefaults__"):
            value = getattr(function, attribute)
            line = SourceLine(
                function.__code__.co_filename,
                function.__code__.co_firstlineno,
                function.__name__,
            )
            path: Path = ((By.SLOT, attribute),)
            text = f"{function.__qualname__}.{attribute}"
            if value is not None:
                found = look(value, deep=False)
                yield Name(text, Same(function), path, False, found, shown(value), line)


def idle(one: Touched, inputs: set[int], kept: Callable[[object], bool]) -> Touched | None:
    """The guard of a tensor that the step only looks at: its layout, not its identity.

    ``kept``: true for one of which the step makes an alias.
    """
    value = follow(one.name.owner(), one.name.path)
    if one.name.moved or not is_a(value, torch.Tensor) or lies_in(value, inputs):
        return one
    if one.outer and kept(value):
        return one
    if not one.outer:
        return None
    return one._replace(name=replace(one.name, found=laid_out(value), aspect=Aspect.LAYOUT))


def unmoved_in(
    one: Touched, value: object, met: set[int], kept: Callable[[object], bool]
) -> Iterator[Touched]:
    """The tensors in a container that the step computes with, still at their places."""
    for words, path, tensor, was in tensors_under(value, one.name.found, one.name.shown):
        if was == look(tensor) and (lies_in(tensor, met) or kept(tensor)):
            name = replace(one.name, shown=words, path=(*one.name.path, *path), moved=False)
            name = replace(name, found=look(tensor), value=shown(tensor))
            yield one._replace(name=name, read=True, container=None, counted=False)


def look_at(value: object, use: Use, *, deep: bool) -> object:
    """The look at a value; `Never` for an iterator that is consumed, and a large array replaced."""
    proxy = type(value) in ProxyTypes  # which has every method
    if issubclass(type(value), Iterator) and not proxy and Use.ITEMS <= use <= Use.OPERAND:
        return Never()
    if use < Use.NAMED and is_buffer(value) and type(look(value)) is Same:  # too large for a look
        return Never()
    return look(value, deep=deep)
