"""Tape: what a step did, op by op, in terms of values instead of tensors."""

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
"""What an op is called with."""
Outs = int | list["Outs"] | None
"""The number of the value that an op returned, or a list of them; None where there is none."""


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of that number: a tensor where it lies in memory, or a Python number."""

    index: int

    def __repr__(self) -> str:
        return f"%{self.index}"


class TensorLayout(NamedTuple):
    """Where a tensor lies, and what it is."""

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
    """The number of the value that it returned, or a list of them; None where there is none."""
    provenance: Provenance = field(compare=False)
    number: Any = None
    """The result of a function on numbers or of ``.item()``. An entry that stands for rows has a
    mapping here: the numbers among their results, by value."""


class Expectation(NamedTuple):
    """A value that Python looked at: what follows it on the tape holds for this value only."""

    place: int
    """The entries before it."""
    looked_at: int
    """The number of the value."""
    value: Any
    """A number, the shape of a tensor, or what a whole tensor holds; `ANY` number."""
    provenance: Provenance
    is_index: bool = False
    """True where the user's line looks at it as it takes ``x[value]``."""


class OptimizerStep(NamedTuple):
    """The stretch of a tape that an optimizer's ``step()`` wrote."""

    name: str
    """The optimizer's class, in lower case."""
    start: int
    """The entries before it."""
    end: int
    values: int
    """How many values there were when it began, and when it ended."""
    values_after: int
    gradients: dict[str, int]
    """By the name of a parameter, the value that was its gradient."""


@dataclass
class Tape:
    """Inputs, entries and what is kept of them."""

    layouts: list[TensorLayout | None] = field(default_factory=list)
    """By value; None for a number."""
    entries: list[Entry] = field(default_factory=list)
    constants: dict[int, torch.Tensor] = field(default_factory=dict)
    """Tensors made from Python data, or from memory that nobody follows."""
    expectations: list[Expectation] = field(default_factory=list)
    steps: list[OptimizerStep] = field(default_factory=list)
    collectives: CollectiveLog = field(default_factory=CollectiveLog, compare=False, repr=False)
    """What collectives gave, until the step is compared with a program."""
    observer: Callable[[Entry], None] | None = field(default=None, compare=False, repr=False)
    """Told of each entry as it is written; none but while `debug` prints them."""

    def write(self, entry: Entry) -> None:
        """One more call of an op."""
        self.entries.append(entry)
        if self.observer is not None:
            self.observer(entry)

    def add(self, layout: TensorLayout | None) -> int:
        """A new value."""
        self.layouts.append(layout)
        return len(self.layouts) - 1

    def expect(self, index: int, value: object, at: Provenance) -> None:
        """Python looks at a value now, or a kernel does; where no line does, that which made it."""
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
