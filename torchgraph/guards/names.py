"""What the user's code reads by name, and the check that each name still leads to the same.

A `Name` begins at an object that is known by identity and goes through plain containers:
``vars(model)["weights"][0]``. What it led to is kept as a *look*: equal looks are equal values.
"""

from __future__ import annotations

import enum
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import FunctionType, ModuleType
from typing import Any

from ..lines import SourceLine
from .checks import ABSENT
from .compiled import CompiledChecks
from .looks import (
    DEEPEST,
    LOOKS,
    MOST,
    UNCHANGING,
    Aspect,
    Same,
    count,
    in_class,
    is_container,
    look,
    own,
    shown,
)

_Get = Callable[[Any, Any], object]


class By(enum.Enum):
    """How a step is made, past all code of the user's."""

    OWN = "own"  # in the object's own dict
    CLASS = "class"  # in the class or those that it comes from
    SLOT = "slot"  # in a slot, or an attribute of a built-in type
    ITEM = "item"  # in a dict, a list, a tuple


Path = tuple[tuple[By, Any], ...]
CONTENT: Path = ((By.SLOT, "cell_contents"),)
"""The path from the cell of a variable to what the variable holds."""


def of_class(cls: type, name: str) -> object:
    """What a class has under a name, as it lies there."""
    for held in cls.__mro__:
        attributes = vars(held)
        if name in attributes:
            return attributes[name]
    return ABSENT


def _own(holder: object, name: str) -> object:
    return own(holder).get(name, ABSENT)


def _slot(holder: object, name: str) -> object:
    try:
        return getattr(holder, name)
    except (AttributeError, ValueError):  # ValueError: an empty cell
        return ABSENT


def hashable(key: Any) -> Any:
    """A key, or what tells it from others where it has no hash: a slice, a name of something else.

    Before Python 3.12 no slice has one.
    """
    try:
        hash(key)
    except TypeError:
        return repr(key)
    return key


def _item(container: object, key: Any) -> object:
    if not is_container(container):
        return ABSENT
    if isinstance(container, dict):
        key = key() if type(key) is Same else key
        return dict.get(container, key, ABSENT) if hashable(key) is key else ABSENT
    if isinstance(container, (list, tuple, deque)) and type(key) in (int, bool):
        kind: Any = next(kind for kind in (list, tuple, deque) if isinstance(container, kind))
        fits = -count(container) <= key < count(container)
        return kind.__getitem__(container, key) if fits else ABSENT
    return ABSENT


_GET: dict[By, _Get] = {By.OWN: _own, By.CLASS: of_class, By.SLOT: _slot, By.ITEM: _item}


def follow(owner: object, path: Path) -> object:
    """What lies there; `ABSENT` when nothing does."""
    value = owner
    for by, key in path:
        value = _GET[by](value, key)
        if value is ABSENT:
            break
    return value


@dataclass(frozen=True, eq=False)
class Name:
    """One thing that the user's code reads by name."""

    shown: str
    """The expression, spelled as in the code."""
    owner: Callable[[], object]
    """Where it begins; None when that is gone, and nobody can read it any more."""
    path: Path
    deep: bool
    """All inside of a container counts."""
    found: Any
    """The `look` at what was there."""
    value: str
    """The same in words."""
    where: SourceLine | None
    moved: bool = False
    """The step itself left something else there."""
    aspect: Aspect = Aspect.CONTENT
    """What of it counts."""
    guarded: bool = True
    """False where what was there does not decide what the step does, as far as Python goes."""

    @property
    def key(self) -> tuple[object, ...]:
        """Which name it is."""
        steps = tuple((by, type(key), hashable(key)) for by, key in self.path)
        return (id(self.owner()), steps, self.deep, self.aspect)

    def holds(self) -> bool:
        """True when it leads to what it led to."""
        owner = self.owner()
        return owner is None or self._look(follow(owner, self.path)) == self.found

    def now(self) -> Name:
        """The same name, with what it leads to now."""
        value = follow(self.owner(), self.path)
        return replace(self, found=self._look(value), value=shown(value))

    def _look(self, value: object) -> object:
        return (
            look(value, deep=self.deep)
            if self.aspect is Aspect.CONTENT
            else LOOKS[self.aspect](value)
        )


def attribute(owner: object, name: str, value: object, shown_as: str = "") -> Name:
    """The name of a tensor in an attribute of an object."""
    path: Path = ((By.OWN, name),)
    return Name(shown_as, Same(owner), path, False, Same(value), shown(value), None)


class Names:
    """All names that one program relies on."""

    def __init__(self, names: Sequence[Name]) -> None:
        self._all = names

    def __iter__(self) -> Iterator[Name]:
        return iter(self._all)

    def with_more(self, names: Sequence[Name]) -> Names:
        """Also these."""
        return Names(list({name.key: name for name in (*self._all, *names)}.values()))

    def values(self) -> list[tuple[str, str]]:
        """(name, value) of those that are more than the same object."""
        named = [name for name in self._all if not isinstance(name.found, Same)]
        return list(dict.fromkeys((name.shown, name.value) for name in named))

    def which(self) -> str:
        """The first name that leads elsewhere; empty when none does."""
        return next((name.shown for name in self._all if not name.holds()), "")

    def compile(self, checks: CompiledChecks) -> None:
        """Add this to the compiled checks, which compare identities as things are now."""
        _Compiling(checks).add([name for name in self._all if name.owner() is not None])


class _Compiling:
    def __init__(self, checks: CompiledChecks) -> None:
        self._checks = checks
        self._done: set[object] = set()

    def add(self, names: Sequence[Name]) -> None:
        for name in names:
            value = name.owner()
            for by, key in name.path:
                if not self._step(name, by, value, key):
                    break
                value = _GET[by](value, key)
            else:
                if name.aspect is not Aspect.IDENTITY:
                    self._inside(name, value, 0)

    def _step(self, name: Name, by: By, value: object, key: Any) -> bool:
        """Compare where one step leads; False when the rest is compared in Python."""
        found = _GET[by](value, key)
        mark = (id(value), by, type(key), key)
        if mark in self._done:
            return found is not ABSENT
        self._done.add(mark)
        held = own(value) if by is By.OWN else value
        if by in (By.OWN, By.ITEM) and isinstance(held, dict) and type(key) is str:
            if found is ABSENT:
                self._checks.absent(held, key)
            else:
                self._checks.item(held, key, found)
        elif by is By.ITEM and isinstance(held, tuple):
            pass
        elif by is By.ITEM and isinstance(held, list):
            self._checks.elements(held)
        elif by in (By.SLOT, By.CLASS) and _is_steady(value, key, by, found):
            if _may_hold_programs(name, value):
                self._checks.call(_is_same, (name.owner, key, getattr(value, key)))
            else:
                self._checks.attribute(value, key, getattr(value, key))
        else:
            self._checks.call(name.holds, ())
            return False
        return found is not ABSENT

    def _inside(self, name: Name, value: object, level: int) -> None:
        """Compare what a container holds, or an array."""
        if name.aspect is not Aspect.CONTENT:
            self._checks.call(name.holds, ())
            return
        if level >= DEEPEST or type(look(value, deep=name.deep, level=level)) is Same:
            return
        mark = (id(value), name.deep, level)
        if mark in self._done:
            return
        self._done.add(mark)
        if isinstance(value, tuple):
            pass
        elif isinstance(value, dict) and len(value) <= MOST:
            self._checks.members(value)
            if isinstance(value, OrderedDict):  # its order is not that of a dict
                self._checks.call(name.holds, ())
        elif type(value) is list and len(value) <= MOST:
            self._checks.elements(value)
        else:
            if type(value) not in UNCHANGING:
                self._checks.call(name.holds, ())
            return
        for item in value.values() if isinstance(value, dict) else value:
            self._inside(name, item, level + 1)


def _may_hold_programs(name: Name, value: object) -> bool:
    """True for an object of the user's that a name begins at, which need not be held: a trainer."""
    if value is not name.owner() or isinstance(value, (type, FunctionType, ModuleType)):
        return False
    return isinstance(name.owner, Same) and not name.owner.holds


def _is_same(owner: Callable[[], object], name: str, value: object) -> bool:
    """True when an object has this very attribute, or is gone: then nobody reads it any more."""
    found = owner()
    return found is None or getattr(found, name, ABSENT) is value


def _is_steady(value: object, key: str, by: By, found: object) -> bool:
    """True when ``getattr`` runs no code of the user's and gives the same object each time."""
    if by is By.SLOT:
        return found is not ABSENT and found is getattr(value, key)
    cls: Any = type(value)
    if cls.__getattribute__ is not type.__getattribute__ or found is ABSENT:
        return False
    if in_class(type(found), "__get__") and not isinstance(found, (FunctionType, staticmethod)):
        return False  # it would run
    if hasattr(type(getattr(cls, key, None)), "__set__"):  # then the metaclass answers
        return False
    return getattr(value, key) is getattr(value, key) is getattr(found, "__func__", found)
