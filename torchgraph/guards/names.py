"""Names that the user's code reads, and the check that each still leads to the same value.

A `Name` begins at an object that is known by identity and goes through plain containers:
``vars(model)["weights"][0]``. What it led to is kept as a *look*: equal looks are equal values.
"""

from __future__ import annotations

import enum
import itertools
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ..lines import SourceLine
from ..objects import is_a
from .aspects import (
    ABSENT,
    DEEPEST,
    LOOKS,
    MOST,
    UNCHANGING,
    Aspect,
    Same,
    as_in,
    cache_of,
    count,
    is_container,
    look,
    own,
    shown,
    values_in,
)
from .classes import dict_of
from .compiled import CompiledChecks

_Get = Callable[[Any, Any], object]


class By(enum.Enum):
    """The kind of one step on a name's path, which runs no code of the user's."""

    OWN = "own"  # in the object's own dict
    CLASS = "class"  # in the class or those that it comes from
    SLOT = "slot"  # in a slot, or an attribute of a built-in type
    ITEM = "item"  # in a dict, a list, a tuple


Path = tuple[tuple[By, Any], ...]
CONTENT: Path = ((By.SLOT, "cell_contents"),)
"""The path from the cell of a variable to what the variable holds."""


def of_class(cls: type, name: str) -> object:
    """The class's raw attribute, found by its MRO."""
    for held in cls.__mro__:
        attributes = vars(held)
        if name in attributes:
            return attributes[name]
    return ABSENT


def _own(holder: object, name: str) -> object:
    return own(holder).get(name, ABSENT)


def _slot(holder: object, name: str) -> object:
    if name == "__class__":
        return type(holder)  # the user's class may answer with code, or raise
    try:
        return getattr(holder, name)
    except (AttributeError, ValueError):  # ValueError: an empty cell
        return ABSENT


def hashable(key: Any) -> Any:
    """The key, or its text where it is not hashable, such as a slice.

    Before Python 3.12 no slice has a hash.
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


GET: dict[By, _Get] = {By.OWN: _own, By.CLASS: of_class, By.SLOT: _slot, By.ITEM: _item}


def follow(owner: object, path: Path) -> object:
    """The value at the end of a path; `ABSENT` when there is none."""
    value = owner
    for by, key in path:
        value = GET[by](value, key)
        if value is ABSENT:
            break
    return value


@dataclass(frozen=True, eq=False)
class Name:
    """A name that the user's code reads."""

    shown: str
    """The expression, spelled as in the code."""
    owner: Callable[[], object]
    """The object at which the name begins; None once it is gone, and nobody can read it."""
    path: Path
    deep: bool
    """All inside of a container counts."""
    found: Any
    """The `look` at what was there."""
    value: str
    """The found value in words."""
    where: SourceLine | None
    moved: bool = False
    """The step itself left something else there."""
    aspect: Aspect = Aspect.CONTENT
    """The part of the value that is compared."""
    guarded: bool = True
    """False where what was there does not decide what the step does, as far as Python goes."""

    @property
    def key(self) -> tuple[object, ...]:
        """The identity of the name."""
        steps = tuple((by, type(key), hashable(key)) for by, key in self.path)
        return (id(self.owner()), steps, self.deep, self.aspect)

    def holds(self) -> bool:
        """True when it leads to what it led to."""
        owner = self.owner()
        return owner is None or self.look(follow(owner, self.path)) == self.found

    def now(self) -> Name:
        """This name with its present value."""
        value = follow(self.owner(), self.path)
        return replace(self, found=self.look(value), value=shown(value))

    def look(self, value: object) -> object:
        """The part of ``value`` that the check compares."""
        if self.aspect is Aspect.KINDS:
            return as_in(self.found, look(value, deep=self.deep))
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
    """The names that one program relies on."""

    def __init__(self, names: Sequence[Name]) -> None:
        self._all = names

    def __iter__(self) -> Iterator[Name]:
        return iter(self._all)

    def with_more(self, names: Sequence[Name]) -> Names:
        """These names and ``names``."""
        return Names(list({name.key: name for name in (*self._all, *names)}.values()))

    def values(self) -> list[tuple[str, str]]:
        """(name, value) of the names that are compared by value, not by identity."""
        named = [name for name in self._all if not isinstance(name.found, Same)]
        return list(dict.fromkeys((name.shown, name.value) for name in named))

    def which(self) -> str:
        """The first name that leads elsewhere; empty when none does."""
        return next((name.shown for name in self._all if not name.holds()), "")

    def by_owner(self) -> list[tuple[str, Names]]:
        """The names by the owner they are read from: ``cfg`` of ``cfg.rate``."""
        found: dict[str, list[Name]] = {}
        for name in self._all:
            owner = name.shown.rpartition(".")[0] or name.shown.partition("[")[0]
            found.setdefault(owner, []).append(name)
        return [(owner, Names(names)) for owner, names in found.items()]

    def compile(self, checks: CompiledChecks) -> None:
        """Add this to the compiled checks."""
        NameChecks(checks).add(self._all)


_FIXED = UNCHANGING - {frozenset}
"""Classes of what holds nothing that changes."""
_OF_OTHERS = frozenset({Aspect.LIKENESS, Aspect.LAYOUT})
"""The aspects of tensors that others may replace."""


class Answering:
    """A name's owner that is no object: it computes an answer at each read."""

    __slots__ = ("goes_by",)

    goes_by: dict[object, object] | None
    """The dict whose changes alone change the answer; None where that is not known."""


class NameChecks:
    """Adds names to compiled checks: a row for each object that they lead through, only once."""

    def __init__(self, checks: CompiledChecks) -> None:
        self._checks = checks
        self._done: set[object] = set()
        self._asked: set[object] = set()
        """Steps that are compared in Python, each time for the whole name."""

    def add(self, names: Iterable[Name]) -> None:
        """Add checks of the names' present values; names whose owner is gone are left out."""
        for name in names:
            if name.aspect in _OF_OTHERS and name.owner() is not None:
                self._checks.call(name.holds, ())  # whichever container they lie in
                continue
            moves = name.aspect not in (Aspect.CONTENT, Aspect.IDENTITY)
            path, last = (name.path[:-1], name.path[-1:]) if moves else (name.path, ())
            value = name.owner()
            if value is None:
                continue
            for by, key in path:
                if not self._step(name, by, value, key):
                    break
                value = GET[by](value, key)
            else:
                if moves:
                    self._moving(name, value, last)
                elif name.aspect is Aspect.CONTENT:
                    self._inside(value, name.deep, 0)

    def _step(self, name: Name, by: By, value: object, key: Any) -> bool:
        """Compare where one step leads; False when the rest is compared in Python."""
        found = GET[by](value, key)
        mark = (id(value), by, type(key), hashable(key))
        if mark in self._done:
            return found is not ABSENT
        if mark in self._asked or not self._compiled(name, by, value, key):
            self._asked.add(mark)
            held = value.goes_by if isinstance(value, Answering) else None
            if held is None:
                self._checks.call(name.holds, ())
            else:
                self._checks.call_when(held, name.holds, ())
            return False
        self._done.add(mark)
        return found is not ABSENT

    def _compiled(self, name: Name, by: By, value: Any, key: Any) -> bool:
        """Compare where one step leads without Python; False where that cannot be."""
        if by is By.CLASS:
            return self._in_class(value, key)
        if by is By.SLOT:
            return is_a(value, CodeType) or self._in_slot(name, value, key)
        held = _dict_held(value) if by is By.OWN else value
        if isinstance(held, dict):
            return self._in_dict(held, key)
        if isinstance(held, list):
            self._checks.elements(held)
        elif isinstance(held, deque):
            self._checks.content(held, deque)
        return isinstance(held, (tuple, list, deque))

    def _in_dict(self, held: dict[Any, Any], key: Any) -> bool:
        key = key() if type(key) is Same else key
        if not _is_plain(key):  # its comparison would be code of the user's
            return False
        if (found := dict.get(held, key, ABSENT)) is ABSENT:
            self._checks.absent(held, key)
        else:
            self._checks.item(held, key, found)
        return True

    def _in_class(self, cls: Any, name: str) -> bool:
        """Compare a class attribute, and its absence from earlier classes in the MRO.

        Types that nobody can change are passed over.
        """
        meta: Any = type(cls)
        if meta.__getattribute__ is not type.__getattribute__:
            return False
        spaces = [(held, None if _is_fixed(held) else dict_of(held)) for held in cls.__mro__]
        if any(space is None and not _is_fixed(held) for held, space in spaces):
            return False
        if not _is_fixed(cls) and ("order", cls) not in self._done:
            self._done.add(("order", cls))
            self._checks.attribute(cls, "__mro__", cls.__mro__)
        for held, space in spaces:
            if space is not None and (id(space), name) not in self._done:
                self._done.add((id(space), name))
                self._in_dict(space, name)
            if name in vars(held):
                break
        return True

    def _in_slot(self, name: Name, value: object, key: str) -> bool:
        found = GET[By.SLOT](value, key)
        in_python = isinstance(of_class(type(value), "__getattribute__"), FunctionType)
        if in_python or found is ABSENT or found is not getattr(value, key):
            return False
        if _may_hold_programs(name, value):
            self._checks.weak_attribute(name.owner, key, found)
        else:
            self._checks.attribute(value, key, found)
        return True

    def _moving(self, name: Name, value: Any, last: Path) -> None:
        """Compare a place whose value the step moves: in a dict, only the value's type."""
        for by, key in last:
            held = _dict_held(value) if by is By.OWN else value
            named = by in (By.OWN, By.ITEM) and type(key) is str
            if named and name.aspect is Aspect.KIND and isinstance(held, dict) and key in held:
                self._checks.kind(held, key, type(held[key]))
                return
        self._checks.call(name.holds, ())

    def _inside(self, value: Any, deep: bool, level: int) -> None:
        """Compare what a container holds, and what else may change while it stays the same."""
        if level >= DEEPEST or type(found := look(value, deep=deep, level=level)) is Same:
            return
        mark = (id(value), deep, level)
        if mark in self._done:
            return
        self._done.add(mark)
        if not is_container(value):
            if type(value) not in UNCHANGING:
                self._value(value, deep, level, found)
        elif count(value) > MOST:
            self._value(value, deep, level, found)
        else:
            self._content(value)
            for item in itertools.filterfalse(_never_changes, values_in(value)):
                self._inside(item, deep, level + 1)

    def _content(self, value: object) -> None:
        """Compare which objects are in a container, and its attributes, where it can have any."""
        if type(value).__dictoffset__:
            self._inside(own(value), False, 0)
        if is_a(value, dict):
            self._checks.members(value)
        if is_a(value, list):
            self._checks.elements(value)
        for base in (OrderedDict, deque, set):  # the order of the first is not that of a dict
            if is_a(value, base):
                self._checks.content(value, base)

    def _value(self, value: object, deep: bool, level: int, found: object) -> None:
        """Compare a value in Python; of a cached function, once its cache has changed."""
        args = (value, deep, level, found)
        cache = cache_of(value)
        if cache is None:
            self._checks.call(_looks_as, args)
        else:
            self._checks.call_when(cache, _looks_as, args)


def _never_changes(value: object) -> bool:
    """True for a plain value, and for a tuple of such values."""
    kinds = map(type, value) if type(value) is tuple else [type(value)]
    return _FIXED.issuperset(kinds)


def _looks_as(value: object, deep: bool, level: int, found: object) -> bool:
    return look(value, deep=deep, level=level) == found


def _dict_held(value: object) -> object:
    """The dict of an object's or a class's own attributes; None where it is not always the same."""
    if isinstance(value, threading.local) or type(value) in weakref.ProxyTypes:
        return None
    return dict_of(value) if isinstance(value, type) else own(value)


def _is_plain(key: object) -> bool:
    """True for a key of a dict that Python itself compares."""
    if type(key) is tuple:
        return all(map(_is_plain, key))
    kind = type(key)
    by_identity = all(
        of_class(kind, name) is of_class(object, name) for name in ("__eq__", "__hash__")
    )
    return by_identity or kind in (str, int, float, bool, bytes, type(None))


_HEAP, _IMMUTABLE = 1 << 9, 1 << 8


def _is_fixed(cls: type) -> bool:
    """True for a type of C whose attributes nobody can set."""
    return not cls.__flags__ & _HEAP or bool(cls.__flags__ & _IMMUTABLE)


def _may_hold_programs(name: Name, value: object) -> bool:
    """True for a user's object, such as a trainer, that a name begins at and need not hold."""
    if value is not name.owner() or is_a(value, (type, FunctionType, ModuleType)):
        return False
    return isinstance(name.owner, Same) and not name.owner.holds
