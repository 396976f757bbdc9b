"""What a step has read or written by name, and the variables of functions around it."""

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
from .chains import Use
from .inside import lies_in, tensors_under

Counts = Counter[tuple[int, str]]
"""How often ``+=`` has moved an attribute, by object and name."""
RowKey = tuple[int, Path, bool]
"""(identity of an owner, a path from it, whether all that is there counts): a row of the ledger."""
Touches = list[tuple[RowKey, Use]]
"""The rows of what a line may replace."""


class Touched(NamedTuple):
    """What a step has read or written under a name."""

    name: Name
    read: bool
    container: object
    """The list, dict or the like that lay there first."""
    outer: bool
    """True for a place that was there before the step."""
    counted: bool = False
    """It was only moved on: ``x += 1``."""
    alike: object = None
    """The look at what a tensor or a container was like."""
    compared: bool = False
    """The step asks which object lay there first."""
    length: int | None = None
    """How much a list held first, where that says what an item is that the step reads."""
    same_object: bool = False
    """What lies there now was there before, here or elsewhere."""
    within: Mapping[tuple[object, ...], int] = MappingProxyType({})
    """The containers in what lay there first, as `containers_within` gives them."""
    identified: bool = False
    """The step asks which object a number is that lies there: it stays Python's own."""

    @property
    def place(self) -> tuple[int, Path]:
        """Equal for two looks at one place."""
        return id(self.name.owner()), self.name.path


class Met(NamedTuple):
    """What one step has met by name."""

    touched: list[Touched]
    counts: Counts
    compared: frozenset[int]
    """The identities of what the step asks which object it is."""
    storages: frozenset[int] = frozenset()
    """Those of all inputs."""


def _is_in(found: Any, value: object) -> bool:
    """True for a look at an object, or at a tuple that holds it."""
    if isinstance(found, Same):
        return found() is value
    return type(found) is tuple and any(_is_in(one, value) for one in found)


class Cell:
    """A variable of a function around, until the function is found."""

    def __init__(self, name: str, found: Any) -> None:
        self.name = name
        self.last = found
        """The look at what it held last."""

    def holds(self, value: object) -> bool:
        """True where that is what it held last, or lies in a tuple there."""
        return _is_in(self.last, value)

    def within(self, functions: Sequence[FunctionType]) -> list[object]:
        """The cells that it may be: there may be several functions of one code."""
        return [
            cell
            for function in functions
            for name, cell in zip(
                function.__code__.co_freevars, function.__closure__ or (), strict=False
            )
            if name == self.name and in_cell(follow(cell, CONTENT)) == self.last
        ]


def in_cell(value: object) -> object:
    """The look at what a variable holds: a container is that one, whatever is in it."""
    if is_generator(value) or is_buffer(value):
        return Same(value)
    return look(value, deep=False, level=1)


def settings(functions: Sequence[FunctionType]) -> Iterator[Name]:
    """The code of functions, and what their arguments are by default."""
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
    """A tensor that the step has only looked at, as an object, counts for what it is like.

    ``kept``: true for one that the step has put elsewhere, too.
    """
    value = follow(one.name.owner(), one.name.path)
    if one.name.moved or not isinstance(value, torch.Tensor) or lies_in(value, inputs):
        return one
    if one.outer and kept(value):
        return one
    if not one.outer:
        return None
    return one._replace(name=replace(one.name, found=laid_out(value), aspect=Aspect.LAYOUT))


def unmoved_in(
    one: Touched, value: object, met: set[int], kept: Callable[[object], bool]
) -> Iterator[Touched]:
    """The tensors in a container that the step computes with, and has left where they lay."""
    for words, path, tensor, was in tensors_under(value, one.name.found, one.name.shown):
        if was == look(tensor) and (lies_in(tensor, met) or kept(tensor)):
            name = replace(one.name, shown=words, path=(*one.name.path, *path), moved=False)
            name = replace(name, found=look(tensor), value=shown(tensor))
            yield one._replace(name=name, read=True, container=None, counted=False)


def look_at(value: object, use: Use, *, deep: bool) -> object:
    """What gives another value each time is never as it was."""
    proxy = type(value) in ProxyTypes  # which has every method
    if issubclass(type(value), Iterator) and not proxy and Use.ITEMS <= use <= Use.OPERAND:
        return Never()
    if use < Use.NAMED and is_buffer(value) and type(look(value)) is Same:  # too large for a look
        return Never()
    return look(value, deep=deep)
