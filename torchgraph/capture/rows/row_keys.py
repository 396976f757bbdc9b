"""Keys of rows: equal for rows with the same ops, settings and layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...record.tape.tape import Entry, Ref, Tape, TensorLayout
from ..graph_of import flat


class Row(NamedTuple):
    """The part of a step that updates one parameter."""

    parameter: str
    entries: list[Entry]
    inputs: list[int]
    """The values that are the parameter's own."""
    shared: list[int]
    kept: list[int]
    """Values read after the step: a counter in a Python number, a slot that is made anew."""


def row_of(
    tape: Tape,
    parameter: str,
    entries: list[Entry],
    owner: Callable[[int], str | None],
    kept: set[int],
    gradient: int | None,
) -> tuple[object, Row]:
    """A key that is equal for rows of one kind, and the row.

    ``kept``: what is read after the step. A shape that is the parameter's, which its ``gradient``
    has, is no part of the kind.
    """
    tokens = Tokens(owner)
    key: list[object] = []
    for entry in entries:
        given = tokens.of((entry.args, entry.kwargs))
        key.append((entry.target, given, type(entry.number), tokens.results(entry)))
    like = None if gradient is None else tape.layouts[gradient]
    storages: dict[int, int] = {}
    for index in (*tokens.inputs, *tokens.made):
        key.append(_layout(tape.layouts[index], like, storages))
    mine = [index for index in tokens.made if index in kept]
    key.append(tokens.of([Ref(index) for index in mine]))
    return tuple(key), Row(parameter, entries, list(tokens.inputs), list(tokens.shared), mine)


class Tokens:
    """Arguments of one row's ops, with its own values by number: equal for rows of one kind."""

    def __init__(self, owner: Callable[[int], str | None]) -> None:
        self._owner = owner
        self.inputs: dict[int, int] = {}
        self.made: dict[int, int] = {}
        self.shared: dict[int, None] = {}

    def of(self, value: object) -> object:
        """A value, or (nested) arguments."""
        if isinstance(value, Ref):
            return self._value(value.index)
        if isinstance(value, (list, tuple)):
            return (type(value), *map(self.of, value))
        if isinstance(value, dict):
            return tuple((key, self.of(item)) for key, item in value.items())
        return (type(value), repr(value) if isinstance(value, float) else value)

    def results(self, entry: Entry) -> object:
        """The results of an op: new values, or values that it has written."""
        found = flat(entry.outs)
        for index in found:
            if index not in self.inputs:
                self.made.setdefault(index, len(self.made))
        return tuple(map(self._value, found))

    def _value(self, index: int) -> tuple[str, int]:
        if index in self.made:
            return ("made", self.made[index])
        if self._owner(index) is None:
            self.shared[index] = None
            return ("shared", index)
        return ("input", self.inputs.setdefault(index, len(self.inputs)))


def _layout(
    layout: TensorLayout | None, like: TensorLayout | None, storages: dict[int, int]
) -> object:
    """Equal for values of two rows that ops treat alike; ``like`` is the row's gradient."""
    if layout is None:
        return None
    shape: object = (layout.shape, layout.stride)
    if not layout.shape:
        shape = "scalar"
    elif like is not None and (layout.shape, layout.stride) == (like.shape, like.stride):
        shape = "as the parameter" if _is_contiguous(layout) else shape
    place = storages.setdefault(layout.storage, len(storages))
    return (shape, place, layout.offset, layout.dtype, layout.device, layout.conj, layout.neg)


def _is_contiguous(layout: TensorLayout) -> bool:
    step = 1
    for size, stride in zip(reversed(layout.shape), reversed(layout.stride), strict=True):
        if stride != step or size == 0:
            return False
        step *= size
    return True
