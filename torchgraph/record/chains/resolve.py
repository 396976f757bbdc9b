"""Resolution of one lookup of a chain by Python's rules, without running user code."""

from __future__ import annotations

import functools
import gc
import os
import sys
import sysconfig
import weakref
from collections.abc import Callable, Sequence
from importlib.util import resolve_name
from types import (
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple

import torch
from torch import nn

from ..._torch.modules import STATE
from ...guards import ABSENT
from ...guards.aspects import count, in_class, is_container, own, values_in
from ...guards.names import By, Path, follow, of_class
from ...lines import PARTS_OF_STEPS
from ...objects import is_a
from ..tape.number import node_of
from .chains import Chain

_LIBRARIES = frozenset({"torch", "numpy", "builtins", "torchgraph"}) | set(sys.stdlib_module_names)
_LIBRARIES -= {"__main__"}


class Source(NamedTuple):
    """The owner and path under which a value is found."""

    owner: object
    path: Path

    def item(self, key: object) -> Source:
        """The path extended to an item of a container."""
        return Source(self.owner, (*self.path, (By.ITEM, key)))


class Lookup(NamedTuple):
    """The result of one lookup: the value, and where it is stored."""

    value: Any
    owner: object = None
    path: Path = ()
    """Empty where the value is immutable, or guarded by another watch."""
    absent: tuple[Source, ...] = ()
    """Places that must stay empty for the lookup to give this value."""
    extends: bool = False
    """True where the path extends that of the container before."""

    def sources(self, before: list[Source]) -> list[Source]:
        """The owners and paths of the value."""
        if self.extends:
            return [Source(owner, (*path, *self.path)) for owner, path in before]
        return [Source(self.owner, self.path)] if self.path else []


def step_of(
    value: object, key: Any, *, item: bool, guarded: Callable[[object], bool]
) -> Lookup | None:
    """``value[key]`` or ``value.key``; None where user code computes it."""
    if isinstance(value, weakref.ProxyTypes):
        value = value.__init__.__self__
    if item or is_container(value):
        return _item(value, key) if item else _field(value, key)
    if key == "__class__":
        return Lookup(type(value))
    if key == "__dict__":
        return Lookup(own(value), value, ((By.SLOT, "__dict__"),))
    if isinstance(value, torch.Tensor):
        return _at(value, By.OWN, key) if key in own(value) else None
    if isinstance(value, ModuleType):
        found = vars(value).get(key, ABSENT)
        path: Path = ((By.OWN, key),) if _may_change(value, key) else ()
        return Lookup(found, value, path) if found is not ABSENT or path else None
    if isinstance(value, super):
        return _of_super(value, key)
    if isinstance(value, type):
        by = of_class(type(value), key)
        if in_class(type(by), "__set__") and not isinstance(by, _SLOTS):
            return None  # a property of its metaclass
        found = of_class(value, key)
        return None if found is ABSENT else Lookup(found, value, class_path(value, key))
    return _attribute(value, key, guarded(value))


def _at(value: object, by: By, key: object) -> Lookup:
    """The value of a path's end in an object at which names may begin."""
    path: Path = ((by, key),)
    return Lookup(follow(value, path), value, path)


def _of_super(value: Any, key: str) -> Lookup | None:
    """``super().key``: the attribute of the next class that has it."""
    holder = class_of(value, key)
    found = vars(holder).get(key, ABSENT)
    if isinstance(found, _SLOTS) and not _gives_anew(found):
        return _at(value.__self__, By.SLOT, key)
    plain = found is not ABSENT and not in_class(type(found), "__set__")
    return Lookup(found, holder, class_path(holder, key)) if plain else None


def class_of(value: object, key: object) -> type:
    """The class that defines ``value.key``; for ``super()`` the next one that has it."""
    if not isinstance(value, super):
        return type(value)
    above: Any = value
    classes = above.__self_class__.__mro__
    after = classes[classes.index(above.__thisclass__) + 1 :]
    return next((cls for cls in after if key in vars(cls)), type(value))


def _item(value: object, key: object) -> Lookup | None:
    path: Path = ((By.ITEM, key),)
    if isinstance(value, MappingProxyType):
        (held,) = gc.get_referents(value)
        return _at(held, By.ITEM, key) if type(held) is dict else None
    if not is_container(value) or isinstance(value, (set, frozenset)):
        return None
    found = follow(value, path)
    missing = isinstance(value, dict) and type(value) is not dict and found is ABSENT
    return None if missing else Lookup(found, path=path, extends=True)


def _field(value: Any, key: str) -> Lookup | None:
    """A field of a named tuple, or an item of a dict that shows its items as attributes."""
    fields = getattr(type(value), "_fields", ())
    if isinstance(value, tuple) and key in fields:
        return _item(value, fields.index(key))
    if key in own(value):
        return _at(value, By.OWN, key)
    as_items = isinstance(value, dict) and of_class(type(value), key) is ABSENT
    return _item(value, key) if as_items and dict.__contains__(value, key) else None


def _attribute(value: object, key: str, guarded: bool) -> Lookup | None:
    cls, attributes = type(value), own(value)
    mine = Source(value, ((By.OWN, key),))
    found = of_class(cls, key)
    if isinstance(found, _SLOTS) and not _gives_anew(found):
        return _at(value, By.SLOT, key)
    if in_class(type(found), "__set__"):
        return None
    if key in attributes:
        there = attributes[key]
        watched = guarded and not is_container(there)
        return Lookup(there, *(() if watched else mine))
    if isinstance(value, nn.Module) or guarded:
        for held in STATE:
            if key in attributes.get(held, ()):
                path = () if guarded else ((By.OWN, held), (By.ITEM, key))
                return Lookup(attributes[held][key], value, path)
    if found is ABSENT and looks_up_itself(value, _ASKED_FOR_ATTRIBUTES):
        return None
    absent = () if guarded else (mine,)
    if found is ABSENT:
        return Lookup(ABSENT, cls, class_path(cls, key), absent)
    if in_class(type(found), "__get__") and not isinstance(
        found, (FunctionType, staticmethod, classmethod)
    ):
        return None
    return Lookup(found, cls, class_path(cls, key), absent)


_SLOTS = (MemberDescriptorType, GetSetDescriptorType)


def _gives_anew(descriptor: Any) -> bool:
    """Accessors of torch's objects and of arrays that return a new tensor or view each time."""
    return str(descriptor.__objclass__.__module__).partition(".")[0] in ("torch", "numpy")


def imported(frame: FrameType, name: str) -> object:
    """The module that a line imports; `ABSENT` where that comes first now."""
    package = str(frame.f_globals.get("__package__") or "")
    try:
        return sys.modules.get(resolve_name(name, package), ABSENT)
    except ImportError:  # no package, or too many dots: the line raises
        return ABSENT


def leads_to(frame: FrameType, chain: Chain, guarded: Callable[[object], bool]) -> object:
    """The present value of a chain; `ABSENT` where only user code could tell."""
    value = frame.f_locals.get(chain.name, frame.f_globals.get(chain.name, ABSENT))
    for step in chain.steps:
        key = leads_to(frame, step.key, guarded) if isinstance(step.key, Chain) else step.key
        known = isinstance(step.key, Chain) or not step.is_open
        found = step_of(value, key, item=step.item, guarded=guarded) if known else None
        if found is None:
            return ABSENT
        value = found.value
    return value


def runs_users(value: object) -> bool:
    """True for a callable that runs the user's lines, whose reads are traced."""
    if isinstance(value, MethodType):
        value = value.__func__
    if isinstance(value, FunctionType):
        return not is_library_file(value.__code__.co_filename)
    if not isinstance(value, type):
        return isinstance(of_class(type(value), "__call__"), FunctionType)
    made = of_class(value, "__init__")
    return isinstance(made, FunctionType) and not is_library_file(made.__code__.co_filename)


def has_attribute(value: object, name: str) -> bool:
    """True where an attribute exists, or code of the class may compute it."""
    if isinstance(value, torch.Tensor):
        return name in own(value)
    there = name in own(value) or of_class(type(value), name) is not ABSENT
    return there or looks_up_itself(value, _ASKED_FOR_ATTRIBUTES)


def shadow_of(value: object, key: object) -> Source | None:
    """The place where an attribute would shadow ``__getattr__`` or a property; None: nowhere."""
    if type(key) is not str or key in own(value) or not type(value).__dictoffset__:
        return None
    found = of_class(type(value), key)
    kept = in_class(type(found), "__set__") or isinstance(found, (FunctionType, *_METHODS))
    asked = looks_up_itself(value, ("__getattr__",)) if found is ABSENT else not kept
    return Source(value, ((By.OWN, key),)) if asked else None


_METHODS = (staticmethod, classmethod)
_OF_MODULES = (vars(nn.Module)["__getattr__"],)
"""Their lookups are in places that names cover as well."""
_ASKED_FOR_ATTRIBUTES = ("__getattr__", "__getattribute__")


def looks_up_itself(
    value: object, by: Sequence[str] = (*_ASKED_FOR_ATTRIBUTES, "__getitem__")
) -> bool:
    """True when code of the class computes missing attributes or items."""
    found = (of_class(type(value), name) for name in by)
    return any(isinstance(one, FunctionType) and one not in _OF_MODULES for one in found)


def class_path(cls: type, key: str) -> Path:
    """Classes of libraries stay as they are."""
    holder = next((held for held in cls.__mro__ if key in vars(held)), cls)
    return () if is_of_library(holder) else ((By.CLASS, key),)


def _may_change(module: ModuleType, key: str) -> bool:
    """False for values that libraries keep constant; torch's functions may be patched."""
    name = str(module.__name__)
    functions = name == "torch" or name.startswith("torch.")
    held = vars(module).get(key)
    plain = isinstance(held, (bool, int, float, str, type(None)))
    return not is_library(name) or plain or (functions and callable(held))


_OURS = ("torchgraph.record", "torchgraph._torch.symbolic")
_FEW = 64


def is_ours(value: object) -> bool:
    """True for a replacement of a number or a function during a recording."""
    if is_container(value) and count(value) <= _FEW:
        return any(is_ours(item) for item in values_in(value) if not _is_users(item))
    if is_a(value, FunctionType):
        return str(value.__globals__.get("__name__")).startswith(_OURS)
    return str(type(value).__module__).startswith(_OURS)


def _is_users(item: object) -> bool:
    """True for a value traversed by itself, and for a number that the user's lines change."""
    node = node_of(item)
    moves = node is not None and getattr(node.writer, "follows", False)
    return moves or issubclass(type(item), (dict, list))


def is_library(module: str) -> bool:
    """True for a module of Python's own, of torch, NumPy or torchgraph."""
    module = str(module)
    return module.partition(".")[0] in _LIBRARIES and not module.startswith(PARTS_OF_STEPS)


def is_of_library(made: type | FunctionType) -> bool:
    """True for a class or a function of one.

    What ``exec`` makes where nothing is called ``__name__`` says that it is built in: the user's.
    """
    is_made = isinstance(made, FunctionType) or bool(made.__flags__ & _MADE_BY_PYTHON)
    return is_library(made.__module__) and not (is_made and made.__module__ == "builtins")


_MADE_BY_PYTHON = 1 << 9
"""``Py_TPFLAGS_HEAPTYPE`` in the flags of a class."""
_PACKAGE = os.path.dirname(sys.modules[__name__.partition(".")[0]].__file__ or "")
_STDLIB = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
_INSTALLED = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
_TORCH = os.path.dirname(os.path.abspath(sys.modules["torch"].__file__ or ""))
_TYPING = getattr(sys.modules.get("typing_extensions"), "__file__", "")
"""It runs inside Python's own ``Union[...]``, which torch writes in a backward pass."""
_AS_USERS = (
    os.path.join(_PACKAGE, "record", "reads", "known.py"),
    *(os.path.join(os.path.dirname(_PACKAGE), *name.split(".")) for name in PARTS_OF_STEPS),
)
"""Files of torchgraph whose functions are traced as the user's are."""
_FOREIGN = (_PACKAGE, _TORCH, os.path.join(os.path.dirname(_TORCH), "numpy"))

_FINDERS = frozenset(
    getattr(sys.modules.get(getattr(finder, "__module__", "")), "__file__", None)
    for finder in sys.meta_path
)
"""The files of import machinery, whose reads are no part of the step."""


@functools.cache
def is_library_file(filename: str) -> bool:
    """True for Python's own files, torch's, NumPy's and torchgraph's.

    Other packages count as the user's: models come from there, and with them what they read.
    """
    if filename.startswith(("<frozen", "<__array")) or filename == _TYPING:
        return True
    if filename.startswith(_AS_USERS):
        return False
    if any(filename.startswith(place + os.sep) for place in _FOREIGN):
        return True
    if any(filename.startswith(place + os.sep) for place in _INSTALLED):
        return filename in _FINDERS
    return any(filename.startswith(place + os.sep) for place in _STDLIB)
