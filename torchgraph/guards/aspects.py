"""Looks: keys by which Python values are compared. Equal looks are equal values."""

from __future__ import annotations

import ctypes
import enum
import functools
import gc
import operator
import random
import threading
import weakref
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from types import FunctionType, MappingProxyType, MethodType
from typing import Any, NamedTuple

import torch

from ..ir.aliasing import is_leaf
from ..objects import in_words, is_a
from ..structure.kinds import SYMBOLS, own_of, parts_of_partial


class _Absent:
    """The result of a read where the object itself holds no such attribute."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()

_PLAIN = frozenset(
    {
        *(bool, int, str, bytes, type(None), range, type(...), type(NotImplemented)),
        *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
    }
)
UNCHANGING = _PLAIN | {slice, float, complex, frozenset, MethodType}
MOST, DEEPEST, _BYTES = 1 << 17, 8, 1 << 24
"""Elements of a container, levels of containers and bytes of an array that are compared."""
_CONTAINERS: tuple[Any, ...] = (OrderedDict, dict, list, tuple, set, frozenset, deque)
_INDEXED = (dict, list, tuple)
_OF_C = (ctypes._SimpleCData, ctypes.Structure, ctypes.Union, ctypes.Array)
_CACHED = type(functools.lru_cache(len))


def is_container(value: object) -> bool:
    """True for what holds values under keys or in an order, and runs no code to do so.

    A proxy that gives another ``__class__`` than its own is none.
    """
    return issubclass(type(value), _CONTAINERS)


def elements(container: object) -> list[object]:
    """The elements of a container, or the keys of a dict; runs no code of the user's."""
    return list(base_of(container).__iter__(container))


def count(container: object) -> int:
    """The number of `elements`."""
    found: int = base_of(container).__len__(container)
    return found


def values_in(container: object) -> list[Any]:
    """The values in a container, without its keys; runs no code of the user's."""
    base = base_of(container)
    return list(base.values(container) if issubclass(base, dict) else base.__iter__(container))


def entries_in(container: object) -> list[tuple[Any, Any]]:
    """(key, value) of a dict, (position, value) of others; runs no code of the user's."""
    base = base_of(container)
    if issubclass(base, dict):
        return list(base.items(container))
    return list(enumerate(base.__iter__(container)))


def item_of(container: Any, key: Any) -> Any:
    """``container[key]`` of a dict, list or tuple, without the code of a user's subclass.

    Raises:
        KeyError, IndexError, TypeError: there is none.
    """
    kind = type(container)
    if kind in _INDEXED or not issubclass(kind, _INDEXED):
        return container[key]
    if issubclass(kind, dict) and not dict.__contains__(container, key):
        raise KeyError(key)  # and no __missing__ makes one
    return base_of(container).__getitem__(container, key)


def base_of(container: object) -> Any:
    """The class of Python's that the container is, or is derived from."""
    return next(kind for kind in _CONTAINERS if issubclass(type(container), kind))


def is_buffer(value: object) -> bool:
    """True for an array of NumPy's or Python's, and other bytes that are written in place."""
    kind = type(value)
    return kind in (bytearray, array) or (_is_array(kind) and in_class(kind, "__setitem__"))


def in_class(cls: type, name: str) -> bool:
    """``hasattr(cls, name)``, and no metaclass is asked."""
    return any(name in vars(held) for held in cls.__mro__)


def _is_array(kind: type) -> bool:
    named = (in_class(kind, name) for name in ("tobytes", "shape", "dtype"))
    return kind is memoryview or all(named)


def own(holder: object) -> Any:
    """The object's own attributes; none where it has no dict."""
    if is_a(holder, threading.local) or type(holder) in weakref.ProxyTypes:
        return holder.__dict__  # one for each thread; that of the object behind it
    try:
        return object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return {}
    except Exception:  # of a property of the user's class
        return own_of(type(holder))(holder)


class Same:
    """Equal for the same object, which it does not keep alive where it can be helped."""

    __slots__ = ("_get", "_hash")

    def __init__(self, value: object) -> None:
        self._hash = id(value)
        try:
            self._get: Callable[[], object] = weakref.ref(value)
        except TypeError:
            self._get = lambda: value

    def __call__(self) -> object:
        """The object; None when it is gone."""
        return self._get()

    @property
    def holds(self) -> bool:
        """True where it keeps the object alive: no weak reference leads there."""
        return not isinstance(self._get, weakref.ref)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self() is other() is not None

    def __hash__(self) -> int:
        return self._hash


def look(value: Any, *, deep: bool = True, level: int = 0) -> object:
    """Equal for the same object, or an equal number, string, small array or container of such.

    ``deep``: so are containers in containers; else they are the same ones.
    """
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if kind in (float, complex):
        return kind, repr(value)  # 0.0 equals -0.0, and NaN nothing
    if is_container(value):
        inside = level < DEEPEST and (deep or level == 0 or is_a(value, tuple))
        item = partial(look, deep=deep, level=level + 1)
        return _contents(value, item) if inside else Same(value)
    parts = (value.start, value.stop, value.step) if kind is slice else parts_of_partial(value)
    if parts is not None:  # a slice has no hash
        return kind, tuple(look(part, deep=deep, level=level + 1) for part in parts)
    if issubclass(kind, (MethodType, MappingProxyType)):  # another one each time it is asked for
        return kind, *map(Same, gc.get_referents(value))
    if kind is _CACHED:
        found = value.cache_info()
        return kind, Same(value), found.misses, found.currsize
    if kind in (bytearray, array) or issubclass(kind, _OF_C):
        held = memoryview(value).cast("B")
        return kind, held.nbytes, bytes(held[:_BYTES])
    if is_generator(value):
        return Drawn(kind, repr(state_of(value)))
    listed = _is_array(kind) and not issubclass(kind, torch.Tensor)
    return _array(value) if listed else _of_object(value)


def _of_object(value: object) -> object:
    """The look at what counts for which object it is; a number that moves for its type."""
    if issubclass(type(value), SYMBOLS):
        return value.__class__, MOVES
    return Same(getattr(value, "stands_for", value) if type(value) is FunctionType else value)


def cache_of(value: Any) -> dict[object, object] | None:
    """The dict in which a function of `lru_cache` keeps results: while it stays, its look does.

    None for anything else, and where it cannot be told from other dicts.
    """
    if type(value) is not _CACHED or value.cache_parameters()["maxsize"] == 0:
        return None
    attributes = vars(value)
    found = [one for one in gc.get_referents(value) if type(one) is dict and one is not attributes]
    return found[0] if len(found) == 1 and len(found[0]) == value.cache_info().currsize else None


MOVES = object()
"""In the place of the value of a number that moves, while a step is recorded."""


def by_kind(found: Any) -> Any:
    """A look in which numbers count by their type alone."""
    if isinstance(found, frozenset):
        return frozenset(map(by_kind, found))
    if type(found) is not tuple or not found:
        return found
    if len(found) == 2 and (found[0] is int or found[0] is float):
        return (found[0],)
    if _is_of_dict(found):  # whose keys stay what they are
        return (found[0], found[1], by_kind(found[2]))
    return tuple(map(by_kind, found))


def _is_of_dict(found: tuple[Any, ...]) -> bool:
    """True for the look at a dict, which may have attributes of its own: class, keys, items."""
    first = found[0][0] if type(found[0]) is tuple and len(found[0]) == 2 else found[0]
    return len(found) == 3 and isinstance(first, type) and issubclass(first, dict)


def with_kinds(found: Any) -> Any:
    """A look in which numbers that move count by their type; the very same where none does."""
    if type(found) is not tuple:
        return found
    if len(found) == 2 and found[1] is MOVES:
        return (found[0],)
    parts = tuple(map(with_kinds, found))
    return found if all(map(operator.is_, parts, found)) else parts


def as_in(found: Any, now: Any) -> Any:
    """A look, in which numbers count by their type where they do so in ``found``."""
    if type(found) is not tuple or type(now) is not tuple:
        return now
    if len(found) == 1 and len(now) == 2 and found[0] is now[0]:
        return found
    return tuple(map(as_in, found, now)) if len(found) == len(now) else now


class Drawn(NamedTuple):
    """The look at a random generator: when it has drawn, it is another."""

    kind: type
    state: str


def is_generator(value: object) -> bool:
    """True for a random generator of Python's or NumPy's."""
    numpy = str(type(value).__module__).startswith("numpy.random")
    return is_a(value, random.Random) or (numpy and state_of(value) is not None)


def state_of(value: object) -> object:
    """The state of a random generator of Python's or NumPy's; None for other objects of NumPy's."""
    if isinstance(value, random.Random):
        return value.getstate()
    bits = getattr(value, "bit_generator", None)  # of a Generator
    return bits.state if bits is not None else getattr(value, "get_state", lambda: None)()


def _contents(value: object, item: Callable[[object], object]) -> object:
    """The look at a container: its type, with attributes where it has any, and each ``item``."""
    cls: Any = type(value)
    if cls.__dictoffset__ and (held := own(value)):
        cls = cls, look(held, deep=False)
    if count(value) > MOST:
        return cls, count(value)
    if is_a(value, dict):
        base = base_of(value)  # each has its order
        return cls, tuple(map(look, base.keys(value))), tuple(map(item, base.values(value)))
    items = elements(value)
    if is_a(value, (set, frozenset)):
        return cls, frozenset(map(item, items))
    if set(map(type, items)) <= _PLAIN:  # the same, at once
        return cls, tuple(zip(map(type, items), items, strict=True))
    return cls, tuple(map(item, items))


def items_in(found: object) -> tuple[object, ...]:
    """The looks at what a list, deque or tuple held; none where that was too much."""
    held = found[1] if isinstance(found, tuple) and len(found) > 1 else ()
    return held if isinstance(held, tuple) else ()


def _array(value: Any) -> object:
    """The look at a NumPy array or number. Memory that others own may change at any time."""
    if isinstance(value, memoryview):
        return Never()
    if value.dtype.hasobject and value.size <= MOST:
        items = value.reshape(-1).tolist()
        looks = tuple(look(item, level=DEEPEST - 2) for item in items)
        return type(value), value.dtype.str, value.shape, looks
    if value.nbytes > _BYTES or value.dtype.hasobject:
        return Same(value)
    return type(value), value.dtype.str, value.shape, value.tobytes()


def is_number(found: object) -> bool:
    """True for the look at a number, a string, or nothing at all."""
    return isinstance(found, tuple) and found[0] in (bool, int, float, complex, str, type(None))


class Never:
    """The look at what no two calls find alike: an iterator that gives its next."""


def alike(value: object, level: int = 0) -> object:
    """A look in which tensors are equal that differ in their elements alone."""
    if is_a(value, torch.Tensor):
        trained = value.requires_grad and is_leaf(value)
        shape = None if value.is_nested else tuple(value.shape)
        layout = (shape, value.dtype, value.device, value.layout)
        return type(value), *layout, trained, look(own(value), deep=False)
    if not is_container(value) or level >= DEEPEST:
        return look(value, level=level)
    return _contents(value, lambda item: alike(item, level + 1))


def laid_out(value: object) -> object:
    """The look of `alike`, with a tensor's layout, ``requires_grad`` and presence of a gradient."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_nested:
        return alike(value)
    lies = (value.stride(), value.storage_offset(), value.is_conj(), value.is_neg())
    leaf = is_leaf(value)
    gradient = not leaf or value.grad is not None
    return alike(value), lies, value.requires_grad, leaf, gradient


class Aspect(enum.Enum):
    """The part of a value that a check compares."""

    CONTENT = "content"
    LIKENESS = "likeness"  # of tensors, their shapes and types: the step carries them
    LAYOUT = "layout"  # of a tensor, all but its elements: the step asks for no more
    IDENTITY = "identity"  # of a container, that it is this one
    KIND = "kind"  # the type: the step moves it on
    KINDS = "kinds"  # of a container, of the numbers in it that move their types alone
    LENGTH = "length"  # of a list: the step reads what it has appended, counted from the front


LOOKS: dict[Aspect, Callable[[object], object]] = {
    Aspect.CONTENT: look,
    Aspect.LIKENESS: alike,
    Aspect.LAYOUT: laid_out,
    Aspect.IDENTITY: Same,
    Aspect.KIND: type,
    Aspect.KINDS: look,
    Aspect.LENGTH: lambda value: count(value) if is_container(value) else None,
}


def shown(value: object) -> str:
    """A value in words: no code of the user's runs for it, and nothing is kept alive."""
    kind = type(value)
    if kind in _PLAIN or kind in (float, complex, slice):
        return f"{value!r:.60}"
    if value is ABSENT:
        return "nothing"
    words = kind.__qualname__ if kind in _CONTAINERS else in_words(value)
    return f"a {words}" if words == kind.__qualname__ else words
