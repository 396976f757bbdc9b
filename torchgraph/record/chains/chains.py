"""Chains: what a line of code reads, from a name on: ``cfg.beta``, ``args["w"]``, ``table[i]``."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple


class Root(enum.Enum):
    """Where a chain begins."""

    GLOBAL = "global"
    LOCAL = "local"
    FREE = "free"
    """A variable of a function around, or of this one that a function inside uses."""
    RETURNED = "returned"
    """What a function returns that the line calls."""


class Use(enum.IntEnum):
    """What becomes of the value that a chain leads to."""

    PLACED = -4  # items of it are replaced or taken away, nobody knows which
    CLEARED = -3  # a container, of all that is in it
    COUNTED = -2  # it is replaced by what it and something else make: ``x += 1``
    STORED = -1  # it is replaced
    NAMED = 0  # kept under a name, or called
    KEPT = 1  # put into a place: ``self.last = cfg.steps``
    COMPARED = 2  # it is asked which object it is: ``is``
    ITEMS = 3  # its elements are looked at, one by one
    WHOLE = 4  # anything
    OPERAND = 5  # an operator, or its text, may read all of a library's object
    INSIDE = 6  # its attributes are read, whatever they are


class EachItem(enum.Enum):
    """The key of a step to one item of a container, nobody knows which."""

    EACH = "each"

    def __str__(self) -> str:
        return "..."


EACH = EachItem.EACH


class ChainStep(NamedTuple):
    """One step of a chain."""

    item: bool
    """``[key]``; else ``.key``."""
    key: Any
    """A `Chain` where that is to be found when the line runs; `EACH`."""

    @property
    def is_open(self) -> bool:
        """True where the code alone does not tell the key."""
        return self.key is EACH or isinstance(self.key, Chain)

    def __str__(self) -> str:
        if self.item:
            return f"[{self.key}]" if self.is_open else f"[{self.key!r}]"
        return f".{self.key}"


class Chain(NamedTuple):
    """A name, and what is read from there on."""

    root: Root
    name: str
    steps: tuple[ChainStep, ...] = ()
    line: int | None = None
    """On which the name is read; None where that is of no account."""

    def __str__(self) -> str:
        return self.name + "".join(map(str, self.steps))

    def then(self, item: bool, key: object) -> Chain:
        """One step further."""
        return self._replace(steps=(*self.steps, ChainStep(item, key)))

    def is_global(self, *names: str) -> bool:
        """True for one of these names alone, as a global."""
        return self.root is Root.GLOBAL and self.name in names and not self.steps

    @property
    def mark(self) -> tuple[object, ...]:
        """Equal for equal chains: 1 and True are other keys."""
        return self.root, self.name, *((s.item, type(s.key), s.key) for s in self.steps)


OWN = ChainStep(False, "__dict__")
ANY = ChainStep(True, EACH)


class Result(NamedTuple):
    """What a call gives: what a function returned, or an item of what it was given."""

    chains: tuple[Chain, ...]

    def then(self, item: bool, key: object) -> Result:
        """One step further."""
        return Result(tuple(chain.then(item, key) for chain in self.chains))


class Iterated(NamedTuple):
    """An iterator over what a chain leads to."""

    chain: Chain


class Constant(NamedTuple):
    """A constant on the stack."""

    value: object


class StackUse(NamedTuple):
    """What becomes of one value."""

    number: int
    """From the top of the stack."""
    use: Use
    step: ChainStep | None = None
    """It is not the value that is used, but what lies there in it."""
    key: int = 0
    """From the top of the stack, the key of an item; 0: none."""
    called: int = 0
    """From the top of the stack, what is called, if only functions like ``getattr`` do this."""


StackUses = Mapping[int, tuple[StackUse, ...]]
"""By the instruction that is about to run."""


Reads = Sequence[tuple[Chain, Use]]


class Line(NamedTuple):
    """What one line reads."""

    chains: Reads
    inner: Reads
    """Those that begin at a variable which the same line stores: a loop in one line."""
    stores: Mapping[int, Reads]
    """What each instruction may replace."""
    returned: Reads
    """Those that begin at what a function returns."""
    inside: frozenset[int] = frozenset()
    """The instructions in it before which a variable of ``inner`` was stored."""
    again: Mapping[int, Reads] = MappingProxyType({})
    """Before which it has replaced something: what it reads then may be something else."""
    unnamed: StackUses = MappingProxyType({})
    """What is done with values that no chain leads to."""
    uses: StackUses = MappingProxyType({})
    """What is done with any value."""


Lines = dict[int, Line]
