"""Kinds of objects: how each is taken apart, and put together again without its constructor.

A part is reached by a step: an item (``[0]``, ``['x']``) or an attribute (``.x``). All of this goes
by the methods of the builtin class below a user's: nobody's ``__getitem__`` or ``__init__`` runs.
"""

from __future__ import annotations

import enum
import functools
import io
import logging
import sys
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from .._torch import pytree

PLAIN: dict[type, Callable[[Any], object]] = {
    int: int.__int__,
    float: float.__float__,
    complex: lambda value: complex.conjugate(complex.conjugate(value)),
    str: str.__str__,
    bytes: lambda value: bytes.join(b"", [value, b""]),
}
"""By the class that lays it out, what an object is without its attributes."""


class PartStep(NamedTuple):
    """From an object to one of its parts."""

    how: str
    name: Any

    def __str__(self) -> str:
        if self.how == ITEM:
            return f"[{self.name!r}]"
        return f".{self.name}" if self.name else ""


ITEM, ATTRIBUTE = "[", "."
Part = tuple[PartStep, Any]


class SameAsItem(NamedTuple):
    """An attribute that is the tensor which the same object has as an item."""

    step: PartStep


class Kind:
    """The rule to take objects of a class apart and rebuild them; this one uses attributes."""

    mutable = True
    is_array = False
    late = False
    """True when its parts are hashed: they have to be whole before they go in."""
    whole = False
    """True when an object is made of its parts at once."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        base: Any = _solid(cls)
        self.new = base.__new__
        self._slots = _slots(cls)
        self._has_dict = cls.__dictoffset__ != 0
        self._own = own_of(cls)

    def parts(self, value: object) -> list[Part]:
        """The parts of an object, in the order in which its class has them."""
        found = [(PartStep(ITEM, key), part) for key, part in self.items(value)]
        own = [(PartStep(ATTRIBUTE, name), part) for name, part in self._attributes(value)]
        if found and own:
            tensors = {id(part): step for step, part in found if isinstance(part, torch.Tensor)}
            own = [(s, SameAsItem(tensors[id(p)]) if id(p) in tensors else p) for s, p in own]
        return found + own

    def blank(self, parts: Iterable[Part]) -> object:
        """A new object without parts, to be filled; ``parts`` may decide how it is made."""
        return self.new(self.cls)

    def refill(self, value: object, parts: list[Part]) -> None:
        """Give an object these parts, and no others."""
        parts = _resolved(parts)
        self.put([(step.name, part) for step, part in parts if step.how == ITEM], value)
        self.put_attributes(value, parts)

    def make(self, parts: list[Part]) -> object:
        """A whole object, where none can be filled later."""
        raise NotImplementedError

    def items(self, value: object) -> Iterable[tuple[object, object]]:
        return ()

    def put(self, items: list[tuple[object, object]], value: object) -> None:
        """The items of ``value`` are these now."""

    def _attributes(self, value: object) -> Iterator[tuple[str, object]]:
        for name, slot in self._slots.items():
            try:
                yield name, slot.__get__(value)
            except AttributeError:  # not set
                continue
        if self._has_dict:
            yield from dict(self._own(value)).items()

    def put_attributes(self, value: object, parts: list[Part]) -> None:
        """The attributes of ``value`` are these now."""
        named = {step.name: part for step, part in parts if step.how == ATTRIBUTE}
        for name, slot in self._slots.items():
            if name in named:
                slot.__set__(value, named.pop(name))
            else:
                try:
                    slot.__delete__(value)
                except AttributeError:  # it was not set, either
                    continue
        if self._has_dict:
            held = self._own(value)
            held.clear()
            held.update(named)


def own_of(cls: type) -> Callable[[object], dict[str, object]]:
    """What gives the ``__dict__`` of an object of a class, past any override of the class."""
    found = (vars(held).get("__dict__") for held in cls.__mro__)
    in_c: Any = next((one for one in found if type(one) in _IN_C), None)
    return _any_own if in_c is None else in_c.__get__


def _any_own(value: object) -> dict[str, object]:
    held: dict[str, object] = object.__getattribute__(value, "__dict__")
    return held


_IN_C = (types.GetSetDescriptorType, types.MemberDescriptorType)


def _resolved(parts: list[Part]) -> list[Part]:
    if not any(type(part) is SameAsItem for _, part in parts):
        return parts
    known = dict(parts)
    return [(step, known[part.step] if type(part) is SameAsItem else part) for step, part in parts]


class _Dict(Kind):
    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        self._base: Any = OrderedDict if issubclass(cls, OrderedDict) else dict
        if issubclass(cls, defaultdict):
            self._slots = {"default_factory": vars(defaultdict)["default_factory"], **self._slots}

    def items(self, value: object) -> Iterable[tuple[object, object]]:
        return list(self._base.items(value))

    def put(self, items: list[tuple[object, object]], value: object) -> None:
        self._base.clear(value)
        for key, part in items:
            self._base.__setitem__(value, key, part)


class _List(Kind):
    """A list, a deque or a set."""

    base: Any = list
    extend = "extend"

    def items(self, value: object) -> Iterable[tuple[object, object]]:
        return list(enumerate(self.base.__iter__(value)))

    def put(self, items: list[tuple[object, object]], value: object) -> None:
        self.base.clear(value)
        getattr(self.base, self.extend)(value, [part for _, part in items])


class _Deque(_List):
    base = deque

    def _attributes(self, value: Any) -> Iterator[tuple[str, object]]:
        yield "maxlen", value.maxlen
        yield from super()._attributes(value)

    def blank(self, parts: Iterable[Part]) -> object:
        made = self.new(self.cls)
        lengths = (part for step, part in parts if step == PartStep(ATTRIBUTE, "maxlen"))
        deque.__init__(made, (), next(lengths))
        return made

    def put_attributes(self, value: object, parts: list[Part]) -> None:
        super().put_attributes(value, [(s, p) for s, p in parts if s.name != "maxlen"])


class _Set(_List):
    late = True
    base, extend = set, "update"


class _Fixed(Kind):
    """An object that is made of its items at once, and given its attributes after."""

    mutable = False

    def make(self, parts: list[Part]) -> object:
        parts = _resolved(parts)
        made = self.of([part for step, part in parts if step.how == ITEM])
        if self._slots or self._has_dict:
            self.put_attributes(made, parts)
        return made

    def of(self, items: list[object]) -> object:
        return self.new(self.cls, items)


class _Tuple(_Fixed):
    base: Any = tuple

    def items(self, value: object) -> Iterable[tuple[object, object]]:
        return list(enumerate(self.base.__iter__(value)))


class _FrozenSet(_Tuple):
    whole = True
    base = frozenset


class _OfNames(_Fixed):
    """A slice, or a method of an object, which may hold tensors: made of these of its own."""

    names: tuple[str, ...]

    def items(self, value: object) -> Iterable[tuple[object, object]]:
        return [(name, getattr(value, name)) for name in self.names]

    def of(self, items: list[Any]) -> object:
        return self.cls(*items)


class _Slice(_OfNames):
    names = ("start", "stop", "step")


class _Method(_OfNames):
    names = ("__func__", "__self__")


class _Plain(_Fixed):
    """A number or text of a class that gives it attributes."""

    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        self._plain = PLAIN[_solid(cls)]

    def items(self, value: object) -> Iterable[tuple[object, object]]:
        return (("()", self._plain(value)),)

    def of(self, items: list[object]) -> object:
        return self.new(self.cls, items[0])


_MEMBERS: tuple[types.MemberDescriptorType, ...] = tuple(
    vars(functools.partial)[name] for name in ("func", "args", "keywords")
)


def parts_of_partial(value: object) -> tuple[object, tuple[object, ...], dict[str, object]] | None:
    """(function, arguments, keywords) of a `functools.partial`; None for anything else."""
    if not issubclass(type(value), functools.partial):
        return None
    function, args, keywords = (member.__get__(value) for member in _MEMBERS)
    return function, args, keywords


class _Partial(Kind):
    def items(self, value: object) -> Iterable[tuple[object, object]]:
        parts: Any = parts_of_partial(value)
        return zip(("func", "args", "keywords"), parts, strict=True)

    def blank(self, parts: Iterable[Part]) -> object:
        return self.new(self.cls, print)

    def put(self, items: list[tuple[object, object]], value: object) -> None:
        base: Any = functools.partial
        base.__setstate__(value, (*(part for _, part in items), {}))


class _Weak(_Fixed):
    def items(self, value: Any) -> Iterable[tuple[object, object]]:
        return (("()", value()),)

    def of(self, items: list[object]) -> object:
        return weakref.ref(items[0]) if items[0] is not None else _DEAD


_SMALL = 4096
"""Bytes of an array that is compared by its content at each call."""


class ArrayContent(NamedTuple):
    """The content of a NumPy array."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    data: bytes | None
    """None for more than can be compared at each call, and for Python objects."""

    @classmethod
    def of(cls, array: Any) -> ArrayContent:
        fits = array.nbytes <= _SMALL and not array.dtype.hasobject
        data = array.tobytes() if fits else None
        return cls(array.dtype.str, array.shape, array.strides, data)

    def array(self) -> Any:
        """A new array with this content."""
        numpy = sys.modules["numpy"]
        return numpy.frombuffer(self.data, self.dtype).reshape(self.shape)


def span(array: Any) -> tuple[int, int]:
    """The start and end address of a NumPy array's memory."""
    first = last = int(array.ctypes.data)
    for size, stride in zip(array.shape, array.strides, strict=True):
        first, last = first + min(0, (size - 1) * stride), last + max(0, (size - 1) * stride)
    return first, last + (int(array.itemsize) if array.size else 0)


class _Array(Kind):
    """A NumPy array: small ones are compared by what they hold."""

    is_array = True

    def parts(self, value: object) -> list[Part]:
        return [(PartStep(ATTRIBUTE, ""), ArrayContent.of(value))]

    def blank(self, parts: Iterable[Part]) -> object:
        content = next(iter(parts))[1]
        return sys.modules["numpy"].empty(content.shape, content.dtype)

    def refill(self, value: Any, parts: list[Part]) -> None:
        value[...] = parts[0][1].array()


class _Registered(_Fixed):
    """A class that says by ``torch.utils._pytree`` what its parts are, and has no attributes."""

    whole = True

    def parts(self, value: object) -> list[Part]:
        children, context = pytree.SUPPORTED_NODES[self.cls].flatten_fn(value)
        found = [(PartStep(ITEM, number), child) for number, child in enumerate(children)]
        return [*found, (PartStep(ATTRIBUTE, "context"), context)]

    def make(self, parts: list[Part]) -> object:
        *children, (_, context) = parts
        unflatten = pytree.SUPPORTED_NODES[self.cls].unflatten_fn
        return unflatten([part for _, part in children], context)


class Nothing:
    """The class of the freed target of a weak reference that stands for dead ones."""


_DEAD = weakref.ref(Nothing())

_BASES: dict[type, type[Kind]] = {
    **dict.fromkeys(PLAIN, _Plain),
    dict: _Dict,
    OrderedDict: _Dict,
    list: _List,
    tuple: _Tuple,
    set: _Set,
    frozenset: _FrozenSet,
    deque: _Deque,
    slice: _Slice,
    functools.partial: _Partial,
    types.MethodType: _Method,
    weakref.ref: _Weak,
    types.SimpleNamespace: Kind,
    object: Kind,
}


class Itself:
    """Base of classes of ours whose objects stand for themselves: nothing is looked for in one."""


_BY_IDENTITY = (
    *(Itself, type, types.ModuleType, types.FunctionType, enum.Enum, logging.Logger),
    *(nn.Module, torch.optim.Optimizer, LRScheduler, torch.amp.GradScaler),
)
"""Types compared by identity: their contents are watched elsewhere, if at all."""
SYMBOLS = (torch.SymInt, torch.SymFloat)
"""Numbers that move, while a step is recorded."""
OPAQUE = (Iterator, Coroutine, io.IOBase)
"""Types whose future values cannot be known."""


def kind_of(cls: type) -> Kind | None:
    """The kind of a class's objects; None for those that are leaves."""
    # A class that a function makes may hold what is around it, and is kept by nobody.
    return _known_kind_of(cls) if "<locals>" not in cls.__qualname__ else _kind_of(cls)


def _kind_of(cls: type) -> Kind | None:
    if cls in (SameAsItem, PartStep, ArrayContent, *PLAIN, bool):
        return None
    if issubclass(cls, (torch.Tensor, torch.Size, *SYMBOLS, *_BY_IDENTITY, *OPAQUE)):
        return None
    if cls.__name__ == "ndarray" and cls.__module__ == "numpy":
        return _Array(cls)
    base = _solid(cls)
    made = _Tuple if issubclass(cls, tuple) else _BASES.get(base)  # torch.return_types too
    opaque = made is Kind and (_is_value(cls) or not _has_attributes(cls))
    if made is None or opaque or (made is _Weak and cls is not base):
        return _Registered(cls) if cls in pytree.SUPPORTED_NODES else None
    return made(cls)


_known_kind_of = functools.lru_cache(maxsize=4096)(_kind_of)


def _has_attributes(cls: type) -> bool:
    return bool(_slots(cls)) or cls.__dictoffset__ != 0


def _is_value(cls: type) -> bool:
    """True for what Python itself compares by its value: paths, fractions, dates."""
    own_hash = hash_of(cls)
    by_value = own_hash is not None and own_hash is not hash_of(object)
    return by_value and str(cls.__module__).partition(".")[0] in sys.stdlib_module_names


def hash_of(cls: type) -> object:
    """The ``__hash__`` in a class or its bases, as it lies there: a mock makes one when asked."""
    return next(vars(held)["__hash__"] for held in cls.__mro__ if "__hash__" in vars(held))


def _solid(cls: type) -> type:
    """The class that lays out the memory of objects: the first whose ``__new__`` is not Python."""
    pythons = (type(None), staticmethod, classmethod)
    return next(c for c in cls.__mro__ if not isinstance(vars(c).get("__new__"), pythons))


def _slots(cls: type) -> dict[str, types.MemberDescriptorType]:
    """The descriptors of all ``__slots__``, by the names that attributes have."""
    found: dict[str, types.MemberDescriptorType] = {}
    for one in reversed(cls.__mro__):
        for name, member in vars(one).items():
            if isinstance(member, types.MemberDescriptorType) and "__slots__" in vars(one):
                found[name] = member
    return found
