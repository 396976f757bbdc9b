"""Objects referenced by values that no chain traverses: views, bound methods, library objects."""

from __future__ import annotations

import gc
import logging
import operator
import sys
import weakref
from collections.abc import Callable, Iterator
from types import (
    BuiltinMethodType,
    FrameType,
    FunctionType,
    MappingProxyType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import torch

from ...guards import ABSENT
from ...guards.aspects import is_buffer, is_container, is_generator
from ...guards.names import By, of_class
from ...objects import is_a
from ...structure import parts_of_partial
from .chains import Chain, ChainStep, Use
from .inside import in_path
from .resolve import Source, is_of_library, is_ours, leads_to

WRITES = {
    **dict.fromkeys(("append", "extend", "add", "discard"), Use.COUNTED),
    "clear": Use.CLEARED,
}
"""Methods of containers that read nothing, and keep the container at its place."""
WEAK = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
"""Their items come and go with references elsewhere: ``calls[argument]``, say."""
PROBED = 4096
"""Limit of an object's attributes that are read where all of them count."""
_NOTHING: dict[object, object] = {}
_VIEWS = (type(_NOTHING.keys()), type(_NOTHING.values()), type(_NOTHING.items()))
_NOT_HOLDERS = frozenset({"builtins", "torch", "torchgraph", "abc", "typing", "enum", "weakref"})


def asked_by(value: object) -> list[tuple[ChainStep, ...]]:
    """The lookups that `operator.attrgetter` and its like make in their argument."""
    if parts := parts_of_partial(value):
        return asked_by(parts[0])
    if not is_a(value, _GETTERS):
        return []
    made: Any = value.__reduce__()
    made, names = made
    if isinstance(value, operator.attrgetter):
        return [tuple(ChainStep(False, one) for one in name.split(".")) for name in names]
    if isinstance(value, operator.itemgetter):
        return [(ChainStep(True, name),) for name in names]
    given = (*getattr(made, "args", ()), *names)  # a `functools.partial` where it has keywords
    return [(ChainStep(False, given[0]),)]


_GETTERS = (operator.attrgetter, operator.itemgetter, operator.methodcaller)


def is_iterator(value: object) -> bool:
    """True for an iterator, which each item advances."""
    cls = type(value)
    return hasattr(cls, "__next__") and cls not in weakref.ProxyTypes  # those have every method


def referents(value: object) -> list[object]:
    """The containers, arrays and iterators read by a call or a read of ``value``."""
    if is_a(value, (*_VIEWS, MappingProxyType)):
        return [held for held in gc.get_referents(value) if is_container(held)]
    if parts := parts_of_partial(value):
        function, args, keywords = parts
        return referents(function) + [held for held in (*args, *keywords.values()) if _moves(held)]
    if is_a(value, (BuiltinMethodType, MethodWrapperType, MethodType)):
        held: Any = operator.attrgetter("__self__")(value)
        reads = is_container(held) and not isinstance(value, MethodType)
        return [held] if reads or _moves(held) else []
    return []


def _moves(value: object) -> bool:
    """True for arrays, iterators and generators, whose state changes under one identity."""
    known = is_buffer(value) or is_iterator(value) or is_generator(value)
    return known and not isinstance(value, torch.Tensor)


def is_holder(value: object) -> bool:
    """True for an object of Python's library or NumPy's whose methods read its attributes."""
    if is_a(value, (type, ModuleType, FunctionType, torch.Tensor)):
        return False
    if not type(value).__dictoffset__:
        return False
    root = str(type(value).__module__).partition(".")[0]
    return root not in _NOT_HOLDERS and (root == "numpy" or root in sys.stdlib_module_names)


def is_memo(value: object, name: str) -> bool:
    """True for an attribute that caches values in a class of Python's library."""
    return isinstance(value, logging.Logger) and name == "_cache"


def asked_besides(value: object) -> Iterator[tuple[str, object, str]]:
    """(words, object, attribute) of reads that methods of Python's library make elsewhere.

    A logger without a level reads that of its parents.
    """
    if not isinstance(value, logging.Logger):
        return
    yield "manager", value.manager, "_disable"
    words, above = "parent", value.parent
    while above is not None:
        yield words, above, "level"
        words, above = f"{words}.parent", above.parent


def is_users(value: object) -> bool:
    """True for an object of a user's class, modules and classes excepted."""
    kept = is_a(value, (torch.nn.Module, type))
    return not kept and not is_of_library(type(value))


def called_by_others(value: object, known: set[type]) -> Iterator[tuple[str, object, Source]]:
    """(text, function, place) of methods that no line of the user's calls by name.

    Args:
        known: classes whose special methods were given already.
    """
    cls = type(value)
    if is_a(value, type) and issubclass(value, torch.autograd.Function):
        yield from _methods(value, lambda name: not name.startswith("__"))
    if is_users(value) and cls not in known:
        known.add(cls)
        yield from _methods(cls, lambda name: name.startswith("__"))


def _methods(cls: type, called: Callable[[str], bool]) -> Iterator[tuple[str, object, Source]]:
    names = (name for one in cls.__mro__ for name in vars(one) if called(name))
    for name in dict.fromkeys(names):
        found = of_class(cls, name)
        function = found.__func__ if isinstance(found, staticmethod) else found
        if isinstance(function, FunctionType) and not is_of_library(function):
            yield f"{cls.__qualname__}.{name}", found, Source(cls, ((By.CLASS, name),))


def closed(
    step: ChainStep, frame: FrameType, guarded: Callable[[object], bool]
) -> ChainStep | None:
    """The step with its present key, in the form of a path; None where it selects no one item."""
    if step.is_any or not isinstance(step.key, Chain):
        return None if step.is_any else step
    key = leads_to(frame, step.key, guarded)
    if key is ABSENT or isinstance(key, (slice, torch.Tensor)) or is_buffer(key) or is_ours(key):
        return None
    if type(key).__module__ == "numpy" and hasattr(key, "__index__"):
        key = int(key)
    return step._replace(key=in_path(key) if step.item else str(key))
