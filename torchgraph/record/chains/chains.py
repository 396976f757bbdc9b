"""Access paths in a line of code: ``cfg.beta``, ``args["w"]``, ``table[i]``."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Root(enum.Enum):
    """The kind of variable or value at which a chain begins."""

    GLOBAL = "global"
    LOCAL = "local"
    FREE = "free"
    """A variable of a function around, or of this one that a function inside uses."""
    MODULE = "module"
    """A module that the line imports, by its name, with a dot for each level of a relative one."""
    RETURNED = "returned"
    """The return value of a function that the line calls."""


class Use(enum.IntEnum):
    """How the value of a chain is used."""

    PERHAPS = -5  # it is replaced where a branch of the line runs
    PLACED = -4  # unknown items of it are replaced or removed
    CLEARED = -3  # a container, of all that is in it
    COUNTED = -2  # it is replaced by a result computed from it: ``x += 1``
    STORED = -1  # it is replaced
    NAMED = 0  # kept under a name, or called
    KEPT = 1  # put into a place: ``self.last = cfg.steps``
    COMPARED = 2  # it is asked which object it is: ``is``
    AMONG = 3  # it is looked for in a container: the very object, or one that equals it
    ITEMS = 4  # its elements are read, one by one
    WHOLE = 5  # anything
    OPERAND = 6  # an operator, or its text, may read all of a library's object
    INSIDE = 7  # its attributes are read, whatever they are


class Key(enum.Enum):
    """A key that the code fixes without fixing which value it selects."""

    EACH = "..."
    """An unknown item of a container."""
    MADE = "()"
    """An object that the step makes of a class."""

    def __str__(self) -> str:
        return self.value


EACH, MADE = Key.EACH, Key.MADE


class Within(NamedTuple):
    """The key of a step to a value itself, or to an unknown part of it."""

    by: Chain | None
    """The function that received the value; the lines of a user's function tell more."""

    def __str__(self) -> str:
        return "..."


class SuperOf(NamedTuple):
    """The key of a step to ``super(kind, value)``."""

    kind: Chain

    def __str__(self) -> str:
        return "super()"


class ChainStep(NamedTuple):
    """One attribute or item lookup in a chain."""

    item: bool
    """``[key]``; else ``.key``."""
    key: Any
    """A `Chain` where the key is computed at run time; a `Key`, `Within` or `SuperOf`."""

    @property
    def is_open(self) -> bool:
        """True where the code alone does not determine the key."""
        return self.is_any or isinstance(self.key, (Chain, SuperOf))

    @property
    def is_any(self) -> bool:
        """True for a step to one of several values."""
        return self.key is EACH or isinstance(self.key, Within)

    def __str__(self) -> str:
        if self.item:
            return f"[{self.key}]" if self.is_open else f"[{self.key!r}]"
        return f".{self.key}"


class Chain(NamedTuple):
    """An access path: a variable and the lookups from it on."""

    root: Root
    name: str
    steps: tuple[ChainStep, ...] = ()
    line: int | None = None
    """The line that reads the name; None where irrelevant."""

    def __str__(self) -> str:
        return self.name + "".join(map(str, self.steps))

    def then(self, item: bool, key: object) -> Chain:
        """The chain with one more lookup; one into a `Within` stays the chain."""
        if item and self.steps and isinstance(self.steps[-1].key, Within):
            return self
        return self._replace(steps=(*self.steps, ChainStep(item, key)))

    def is_global(self, *names: str) -> bool:
        """True for one of these names alone, as a global."""
        return self.root is Root.GLOBAL and self.name in names and not self.steps

    @property
    def mark(self) -> tuple[object, ...]:
        """A hash key of the chain, in which 1 and True differ."""
        return self.root, self.name, *((s.item, type(s.key), s.key) for s in self.steps)


OWN = ChainStep(False, "__dict__")


class Result(NamedTuple):
    """The value of one of several chains: of a call, or of a conditional expression."""

    chains: tuple[Chain, ...]

    def then(self, item: bool, key: object) -> Result:
        """The result with one more lookup in each chain."""
        return Result(tuple(chain.then(item, key) for chain in self.chains))


class Iterated(NamedTuple):
    """An iterator over the value of one of several chains."""

    chains: tuple[Chain, ...]


class Constant(NamedTuple):
    """A constant on the stack."""

    value: object


Reads = Sequence[tuple[Chain, Use]]


class Test(NamedTuple):
    """A conditional jump at the start of a line, which may skip a part of it."""

    chain: Chain
    skips: str
    """The last words of the jump's name: ``IF_FALSE``, ``IF_NONE``."""
    offsets: range
    """The instructions that are skipped."""


class Line(NamedTuple):
    """The reads and writes of one line of code."""

    chains: Reads
    inner: Reads
    """Reads from a variable that the same line stores: a loop in one line."""
    stores: Reads
    """The chains that the line may assign."""
    returned: Reads
    """The uses of the return value of a function that the line calls."""
    put: Mapping[object, object]
    """By the mark of a chain that a branch of the line assigns, the constant assigned.

    None for something that the step makes.
    """
    test: Test | None = None
    """The conditional jump at its start."""
    skipped: Any = None
    """The `Line` without the part that the jump skips."""


Lines = dict[int, Line]
