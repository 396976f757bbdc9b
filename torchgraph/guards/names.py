"""What the user's code reads by name, and the check that each name still leads to the same.

A `Name` begins at an object that is known by identity and goes through plain containers:
``vars(model)["weights"][0]``. What it led to is kept as a *look*: equal looks are equal values.
"""

from __future__ import annotations

import enum
import functools
import random
import threading
import weakref
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any, NamedTuple

import torch

from ..lines import SourceLine
from .checks import ABSENT

_PLAIN = frozenset(
    {
        *(bool, int, str, bytes, type(None), range, slice, type(...), type(NotImplemented)),
        *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
    }
)
_UNCHANGING = _PLAIN | {float, complex, frozenset, MethodType}
_MOST, _DEEPEST, _BYTES = 1024, 8, 1 << 16
"""Elements of a container, levels of containers and bytes of an array that are compared."""
_CACHED = type(functools.lru_cache(len))
_Get = Callable[[Any, Any], Any]


class By(enum.Enum):
    """How a step is made, past all code of the user's."""

    OWN = "own"  # in the object's own dict
    CLASS = "class"  # in the class or those that it comes from
    SLOT = "slot"  # in a slot, or an attribute of a built-in type
    ITEM = "item"  # in a dict, a list, a tuple


Path = tuple[tuple[By, Any], ...]


def is_container(value: Any) -> bool:
    """True for what holds values under keys or in an order, and runs no code to do so."""
    return isinstance(value, (dict, list, tuple, set, frozenset, deque))


def is_buffer(value: Any) -> bool:
    """True for an array of NumPy's or Python's, and other bytes that are written in place."""
    kind = type(value)
    array_like = hasattr(kind, "tobytes") and hasattr(kind, "shape")
    return kind in (bytearray, array) or (array_like and hasattr(kind, "__setitem__"))


def own(holder: Any) -> Any:
    """The object's own attributes; none where it has no dict."""
    if isinstance(holder, threading.local):  # one for each thread
        return holder.__dict__
    try:
        return object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return {}


def of_class(cls: type, name: str) -> Any:
    """What a class has under a name, as it lies there."""
    for held in cls.__mro__:
        attributes = vars(held)
        if name in attributes:
            return attributes[name]
    return ABSENT


def _own(holder: Any, name: str) -> Any:
    return own(holder).get(name, ABSENT)


def _slot(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name)
    except (AttributeError, ValueError):  # ValueError: an empty cell
        return ABSENT


def _item(container: Any, key: Any) -> Any:
    if isinstance(container, dict):
        return dict.get(container, key() if type(key) is Same else key, ABSENT)
    if isinstance(container, (list, tuple, deque)) and type(key) in (int, bool):
        kind: Any = next(kind for kind in (list, tuple, deque) if isinstance(container, kind))
        fits = -len(container) <= key < len(container)
        return kind.__getitem__(container, key) if fits else ABSENT
    return ABSENT


_GET: dict[By, _Get] = {By.OWN: _own, By.CLASS: of_class, By.SLOT: _slot, By.ITEM: _item}


def follow(owner: Any, path: Path) -> Any:
    """What lies there; `ABSENT` when nothing does."""
    value = owner
    for by, key in path:
        value = _GET[by](value, key)
        if value is ABSENT:
            break
    return value


class Same:
    """Equal for the same object, which it does not keep alive where it can be helped."""

    __slots__ = ("_get", "_hash")

    def __init__(self, value: Any) -> None:
        self._hash = id(value)
        try:
            self._get: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            self._get = lambda: value

    def __call__(self) -> Any:
        """The object; None when it is gone."""
        return self._get()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self() is other() is not None

    def __hash__(self) -> int:
        return self._hash


def look(value: Any, *, deep: bool = True, level: int = 0) -> Any:
    """Equal for the same object, or an equal number, string, small array or container of such.

    ``deep``: so are containers in containers; else they are the same ones.
    """
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if kind in (float, complex):
        return kind, repr(value)  # 0.0 equals -0.0, and NaN nothing
    if is_container(value):
        inside = level < _DEEPEST and (deep or level == 0 or isinstance(value, tuple))
        return _contents(value, deep, level) if inside else Same(value)
    if isinstance(value, functools.partial):
        parts = (value.func, value.args, value.keywords)
        return kind, tuple(look(part, deep=deep, level=level + 1) for part in parts)
    if isinstance(value, MethodType):
        return kind, Same(value.__self__), Same(value.__func__)
    if kind is _CACHED:
        found = value.cache_info()
        return kind, Same(value), found.misses, found.currsize
    if kind in (bytearray, array):
        return kind, len(value), bytes(memoryview(value).cast("B")[:_BYTES])
    if is_generator(value):
        return Drawn(kind, repr(_state(value)))
    if isinstance(value, torch.Tensor) or not (hasattr(kind, "tobytes") and hasattr(kind, "shape")):
        return Same(value)
    return _array(value)


class Drawn(NamedTuple):
    """The look at a random generator: when it has drawn, it is another."""

    kind: type
    state: str


def is_generator(value: Any) -> bool:
    """True for a random generator of Python's or NumPy's."""
    numpy = type(value).__module__.startswith("numpy.random")
    return isinstance(value, random.Random) or (numpy and _state(value) is not None)


def _state(value: Any) -> Any:
    if isinstance(value, random.Random):
        return value.getstate()
    bits = getattr(value, "bit_generator", None)  # of a Generator
    return bits.state if bits is not None else getattr(value, "get_state", lambda: None)()


def _contents(value: Any, deep: bool, level: int) -> Any:
    kind = type(value)
    if len(value) > _MOST:
        return kind, len(value)
    if isinstance(value, dict):
        base: Any = OrderedDict if isinstance(value, OrderedDict) else dict  # each has its order
        items = [look(v, deep=deep, level=level + 1) for v in base.values(value)]
        return kind, tuple(map(look, base.keys(value))), tuple(items)
    found = (look(item, deep=deep, level=level + 1) for item in value)
    return kind, frozenset(found) if isinstance(value, (set, frozenset)) else tuple(found)


def _array(value: Any) -> Any:
    """Of NumPy, an array or a number."""
    if value.nbytes > _BYTES or value.dtype.hasobject:
        return Same(value)
    return type(value), value.dtype.str, value.shape, value.tobytes()


@dataclass(frozen=True, eq=False)
class Name:
    """One thing that the user's code reads by name."""

    shown: str
    """As it stands in the code."""
    owner: Callable[[], Any]
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
    shape_only: bool = False
    """Of tensors, only what they are like counts: the step carries them, or only asks for that."""
    same_object: bool = False
    """What is in the container does not count, but that it is this one."""
    guarded: bool = True
    """False where what was there does not decide what the step does, as far as Python goes."""

    @property
    def key(self) -> tuple[Any, ...]:
        """Which name it is."""
        steps = tuple((by, type(key), key) for by, key in self.path)
        return (id(self.owner()), steps, self.deep, self.shape_only, self.same_object)

    def holds(self) -> bool:
        """True when it leads to what it led to."""
        owner = self.owner()
        return owner is None or self._look(follow(owner, self.path)) == self.found

    def now(self) -> Name:
        """As it is now."""
        value = follow(self.owner(), self.path)
        return replace(self, found=self._look(value), value=shown(value))

    def _look(self, value: Any) -> Any:
        if self.same_object:
            return Same(value)
        return alike(value) if self.shape_only else look(value, deep=self.deep)


def is_number(found: Any) -> bool:
    """True for the look at a number, a string, or nothing at all."""
    return isinstance(found, tuple) and found[0] in (bool, int, float, complex, str, type(None))


class Never:
    """The look at what no two calls find alike: an iterator that gives its next."""


def alike(value: Any, level: int = 0) -> Any:
    """A look in which tensors are equal that differ in their elements alone."""
    if isinstance(value, torch.Tensor):
        trained = value.is_leaf and value.requires_grad
        shape = None if value.is_nested else tuple(value.shape)
        layout = (shape, value.dtype, value.device, value.layout)
        return type(value), *layout, trained, look(own(value), deep=False)
    if not is_container(value) or len(value) > _MOST or level >= _DEEPEST:
        return look(value, level=level)
    if isinstance(value, dict):
        base: Any = OrderedDict if isinstance(value, OrderedDict) else dict
        items = tuple(alike(item, level + 1) for item in base.values(value))
        return type(value), tuple(map(look, base.keys(value))), items
    found = (alike(item, level + 1) for item in value)
    unordered = isinstance(value, (set, frozenset))
    return type(value), frozenset(found) if unordered else tuple(found)


def shown(value: Any) -> str:
    """A value in words: no code of the user's runs for it, and nothing is kept alive."""
    if type(value) in _PLAIN or type(value) in (float, complex) or isinstance(value, enum.Enum):
        return f"{value!r:.60}"
    if callable(value) and hasattr(value, "__qualname__"):
        return str(value.__qualname__)
    return "nothing" if value is ABSENT else f"a {type(value).__qualname__}"


class Names:
    """Of one program."""

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

    def compile(self, checks: Any) -> None:
        """Add this to the compiled checks, which compare identities as things are now."""
        _Compiling(checks).add([name for name in self._all if name.owner() is not None])


class _Compiling:
    def __init__(self, checks: Any) -> None:
        self._checks = checks
        self._done: set[Any] = set()

    def add(self, names: Sequence[Name]) -> None:
        for name in names:
            value = name.owner()
            for by, key in name.path:
                if not self._step(name, by, value, key):
                    break
                value = _GET[by](value, key)
            else:
                if not name.same_object:
                    self._inside(name, value, 0)

    def _step(self, name: Name, by: By, value: Any, key: Any) -> bool:
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
            self._checks.attribute(value, key, getattr(value, key))
        else:
            self._checks.call(name.holds, ())
            return False
        return found is not ABSENT

    def _inside(self, name: Name, value: Any, level: int) -> None:
        """Compare what a container holds, or an array."""
        if name.shape_only:
            self._checks.call(name.holds, ())
            return
        if level >= _DEEPEST or type(look(value, deep=name.deep, level=level)) is Same:
            return
        mark = (id(value), name.deep, level)
        if mark in self._done:
            return
        self._done.add(mark)
        if isinstance(value, tuple):
            pass
        elif isinstance(value, dict) and len(value) <= _MOST:
            self._checks.members(value)
            if isinstance(value, OrderedDict):  # its order is not that of a dict
                self._checks.call(name.holds, ())
        elif type(value) is list and len(value) <= _MOST:
            self._checks.elements(value)
        else:
            if type(value) not in _UNCHANGING:
                self._checks.call(name.holds, ())
            return
        for item in value.values() if isinstance(value, dict) else value:
            self._inside(name, item, level + 1)


def _is_steady(value: Any, key: str, by: By, found: Any) -> bool:
    """True when ``getattr`` runs no code of the user's and gives the same object each time."""
    if by is By.SLOT:
        return found is not ABSENT and found is getattr(value, key)
    cls: Any = type(value)
    if cls.__getattribute__ is not type.__getattribute__ or found is ABSENT:
        return False
    if isinstance(found, (property, classmethod)) or hasattr(cls, key):
        return False
    return getattr(value, key) is getattr(value, key) is getattr(found, "__func__", found)
