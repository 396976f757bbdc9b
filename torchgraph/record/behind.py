"""What stands behind an object that no chain goes through: a view, a bound method, a library's."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from types import (
    BuiltinMethodType,
    FunctionType,
    MappingProxyType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import torch

from ..guards import ABSENT
from ..guards.looks import is_buffer, is_container, own
from ..guards.names import of_class
from ..structure import parts_of_partial
from .chains import Step, Use
from .inside import in_path
from .resolve import is_library, is_ours

WRITES = {
    **dict.fromkeys(("append", "extend", "insert", "add", "discard", "appendleft"), Use.COUNTED),
    "clear": Use.CLEARED,
}
"""Methods of containers that look at nothing."""
WEAK = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
"""What is in them comes and goes with what others hold: by ``calls[argument]``, say."""
PROBED = 4096
"""Attributes of one object that are looked at when all of them count."""
_NOTHING: dict[Any, Any] = {}
_VIEWS = (type(_NOTHING.keys()), type(_NOTHING.values()), type(_NOTHING.items()))
_NOT_HOLDERS = frozenset({"builtins", "torch", "torchgraph", "abc", "typing", "enum", "weakref"})


def is_iterator(value: Any) -> bool:
    """True for what gives its next, and is another one then."""
    return hasattr(type(value), "__next__")


def behind(value: Any) -> list[Any]:
    """The containers, arrays and iterators that are read where ``value`` is called or looked at."""
    if isinstance(value, (*_VIEWS, MappingProxyType)):
        return [held for held in gc.get_referents(value) if is_container(held)]
    if parts := parts_of_partial(value):
        return behind(parts[0])
    if isinstance(value, (BuiltinMethodType, MethodWrapperType)):
        held = value.__self__
        reads = is_container(held) or is_buffer(held) or is_iterator(held)
        return [held] if reads and not isinstance(held, torch.Tensor) else []
    return []


def is_holder(value: Any) -> bool:
    """True for an object of Python's library or NumPy's whose methods read its attributes."""
    if isinstance(value, (type, ModuleType, FunctionType, torch.Tensor)) or not own(value):
        return False
    root = str(type(value).__module__).partition(".")[0]
    return root not in _NOT_HOLDERS and (root == "numpy" or root in sys.stdlib_module_names)


def users_methods(cls: type, called: Callable[[str], bool]) -> Iterator[tuple[str, Any]]:
    """(name, function) of the user's in a class that no line of the user's calls by name."""
    names = (name for one in cls.__mro__ for name in vars(one) if called(name))
    for name in dict.fromkeys(names):
        found = of_class(cls, name)
        function = found.__func__ if isinstance(found, staticmethod) else found
        if isinstance(function, FunctionType) and not is_library(function.__module__):
            yield name, found


def with_key(step: Step) -> Step | None:
    """With its key as a path has it; None for a key that leads to no one item."""
    key = step.key
    if key is ABSENT or isinstance(key, (slice, torch.Tensor)) or is_buffer(key) or is_ours(key):
        return None
    if type(key).__module__ == "numpy" and hasattr(key, "__index__"):
        key = int(key)
    return step._replace(key=in_path(key) if step.item else str(key))
