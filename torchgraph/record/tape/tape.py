"""Tape: the ops of a step in order, over value numbers instead of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from ...distributed.collective_log import CollectiveLog
from ...guards.values import ANY as ANY
from ...ir.program import Provenance
from ...lines import SourceLine, in_subscript, looker

Args = tuple[object, ...]
Kwargs = dict[str, object]
Arguments = tuple[Args, Kwargs]
"""The positional and keyword arguments of an op."""
Outs = int | list["Outs"] | None
"""The value number of a result, or a list of them; None where there is none."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A value by its number: a tensor by its memory, or a Python number."""

    index: int

    def __repr__(self) -> str:
        return f"%{self.index}"


class TensorLayout(NamedTuple):
    """The storage, offset, shape, strides and dtype of a tensor."""

    storage: int
    """The number of its storage on the tape."""
    nbytes: int
    """The size of that storage."""
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    conj: bool = False
    neg: bool = False


@dataclass(slots=True)
class Entry:
    """One call of an op, or of a Python function on numbers."""

    target: Any
    args: tuple[Any, ...]
    kwargs: Kwargs
    outs: Any
    """The value number of the result, or a list of them; None where there is none."""
    provenance: Provenance = field(compare=False)
    number: Any = None
    """The result of a function on numbers or of ``.item()``. An entry that stands for rows has a
    mapping here: the numbers among their results, by value."""


class Expectation(NamedTuple):
    """A value guard: Python has read the value, so the rest of the tape holds for it only."""

    place: int
    """The number of entries before it."""
    looked_at: int
    """The number of the value."""
    value: Any
    """A number, the shape of a tensor, or a tensor's contents; `ANY` number."""
    provenance: Provenance
    is_index: bool = False
    """True where the line reads it as an index, ``x[value]``."""


class OptimizerStep(NamedTuple):
    """The span of a tape that an optimizer's ``step()`` wrote."""

    name: str
    """The optimizer's class, in lower case."""
    start: int
    """The number of entries before it."""
    end: int
    values: int
    """The number of values when it began; ``values_after``, when it ended."""
    values_after: int
    gradients: dict[str, int]
    """By parameter name, the value of its gradient."""


@dataclass
class Tape:
    """The recorded ops of a step, with the inputs, constants and value guards."""

    layouts: list[TensorLayout | None] = field(default_factory=list)
    """By value; None for a number."""
    entries: list[Entry] = field(default_factory=list)
    constants: dict[int, torch.Tensor] = field(default_factory=dict)
    """Tensors made from Python data, or from memory outside of the tape."""
    expectations: list[Expectation] = field(default_factory=list)
    steps: list[OptimizerStep] = field(default_factory=list)
    collectives: CollectiveLog = field(default_factory=CollectiveLog, compare=False, repr=False)
    """Results of collectives, until the step is compared with a program."""
    compiled: list[SourceLine] = field(default_factory=list)
    """The user's lines that called functions compiled by `torch.compile`."""
    observer: Callable[[Entry], None] | None = field(default=None, compare=False, repr=False)
    """Called with each entry as it is written; set only while `debug` prints them."""

    def write(self, entry: Entry) -> None:
        """Append an entry."""
        self.entries.append(entry)
        if self.observer is not None:
            self.observer(entry)

    def add(self, layout: TensorLayout | None) -> int:
        """The number of a new value."""
        self.layouts.append(layout)
        return len(self.layouts) - 1

    def expect(self, index: int, value: object, at: Provenance) -> None:
        """Record a value guard, at this line or at the one that made the value."""
        made = (entry.provenance.frames for entry in self.entries if entry.outs == index)
        at = replace(at, looker=looker(), frames=at.frames or next(made, ()))
        found = Expectation(len(self.entries), index, value, at, in_subscript())
        self.expectations.append(found)

    def line_of(self, value: int | None) -> SourceLine | None:
        """The user's line that made a value."""
        return next((e.provenance.line for e in self.entries if e.outs == value), None)


def refs(value: object) -> Iterator[Ref]:
    """The values in (nested) arguments."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from refs(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from refs(item)
