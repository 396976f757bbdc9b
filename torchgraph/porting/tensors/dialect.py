"""Methods of tensors and modules, by who calls them: code for OneFlow gets OneFlow's meaning.

A tensor is torch's, and its class has one ``//``. In OneFlow ``-3 // 2`` is -1, and code of torch
relies on -2. So those members of `torch.Tensor` and `torch.nn.Module` for which the table has an
adapter are replaced by one that asks which module calls: a module that imports OneFlow's names
gets the adapter, every other one, torch among them, what it always got. Members that
torch lacks are there for all.

Python's own library and NumPy act for whoever calls them: a thread pool that calls
``Tensor.argsort`` does so for the script. So does code that was made of text without a name.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from functools import cached_property, wraps
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch

from ..names import Name, table
from .arrays import as_arrays

_STANDARD = str(Path(sysconfig.get_path("stdlib")))
_INSTALLED = {"site-packages", "dist-packages"}
_OURS = ("torch", "torchgraph")
_CLASSES: dict[str, type] = {
    "Tensor": torch.Tensor,
    "nn.Module": torch.nn.Module,
    "nn.Parameter": torch.nn.Parameter,
}
_speaking: dict[str, bool] = {}
"""By the name of a module: whether it is code for OneFlow."""
_acts_for_others: dict[str, bool] = {}
"""By the name of a module: whether it is of Python's library or NumPy."""
_looked_at: dict[str, int] = {}
"""By the name of a module that is none: how many globals it had."""
_scripts_speak = False
_is_installed = False


def heard(frame: FrameType, asked: str = "") -> None:
    """The module of a frame has asked for a name of OneFlow's.

    To ask for a name with two underscores says nothing: `inspect` asks each module for some.
    """
    name = frame.f_globals.get("__name__")
    is_of_python = asked.startswith("__") and asked != "__all__"
    if name is None or is_of_python or _acts(name, frame) or name.partition(".")[0] in _OURS:
        return
    _speaking[name] = True


def all_scripts_speak() -> None:
    """From now on code that is not installed as a library is code for OneFlow."""
    global _scripts_speak
    _scripts_speak = True
    _speaking["__main__"] = True


def speaks(frame: FrameType) -> bool:
    """Whether the code of a frame is for OneFlow."""
    at: FrameType | None = frame
    while at is not None:
        name = at.f_globals.get("__name__")
        if name is None:  # code that was made of text
            if _imports_it(at.f_globals):
                return True
        elif _speaking.get(name):
            return True
        elif not _acts(name, at):
            return _is_for_it(name, at)
        at = at.f_back
    return _scripts_speak  # a thread that runs no code of a script


def _acts(name: str, frame: FrameType) -> bool:
    known = _acts_for_others.get(name)
    if known is None:
        file, top = frame.f_code.co_filename, name.partition(".")[0]
        is_of_python = file.startswith((_STANDARD, "<frozen ")) and not _is_installed_at(file)
        known = top == "numpy" or (is_of_python and top in sys.stdlib_module_names)
        _acts_for_others[name] = known
    return known


def _is_for_it(name: str, frame: FrameType) -> bool:
    known = _speaking.get(name)
    if known is None and _scripts_speak:
        known = _speaking[name] = not _is_library(name, frame.f_code.co_filename)
    if known or _looked_at.get(name) == len(frame.f_globals):
        return bool(known)
    _looked_at[name] = len(frame.f_globals)
    if _imports_it(frame.f_globals):
        _speaking[name] = True
    return _speaking.get(name, False)


def _is_library(name: str, file: str) -> bool:
    is_ours = name.partition(".")[0] in _OURS
    return is_ours or file.startswith(("<", _STANDARD)) or _is_installed_at(file)


def _is_installed_at(file: str) -> bool:
    return not _INSTALLED.isdisjoint(Path(file).parts)


def _imports_it(names: dict[str, Any]) -> bool:
    """Whether a global is a module of `torchgraph.oneflow`: to import it asks for no name."""
    # By the type: asked for its class, torch.distributed.reduce_op warns.
    values = (value for value in list(names.values()) if issubclass(type(value), ModuleType))
    modules = (value.__name__ for value in values)
    return any(f"{name}.".startswith("torchgraph.oneflow.") for name in modules)


def install() -> None:
    """Give the classes the members of the table; once."""
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    as_arrays(lambda: speaks(sys._getframe(2)))
    for name, row in table().items():
        owner = _CLASSES.get(row.owner)
        member = name.rpartition(".")[2]
        if owner is None or not (row.is_adapted or row.is_refused):
            continue
        known = getattr(owner, member, None)
        if known is None:
            setattr(owner, member, _refusing(row) if row.is_refused else row.value())
        elif isinstance(known, property) or not callable(known):
            setattr(owner, member, _property(known, row))
        else:
            setattr(owner, member, _method(known, row))


def _refusing(row: Name) -> property:
    return property(lambda self: row.value())


def _method(known: Callable[..., Any], row: Name) -> Callable[..., Any]:
    meant = _OnFirstUse(row)

    @wraps(known)
    def of_two_meanings(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if speaks(sys._getframe(1)):
            return meant.value(self, *args, **kwargs)
        return known(self, *args, **kwargs)

    return of_two_meanings


def _property(known: Any, row: Name) -> property:
    meant = _OnFirstUse(row)

    def get(self: Any) -> Any:
        return meant.value.fget(self) if speaks(sys._getframe(1)) else known.__get__(self)

    return property(get, getattr(known, "__set__", None), getattr(known, "__delete__", None))


class _OnFirstUse:
    """The adapter of a row; an error where the row is refused."""

    def __init__(self, row: Name) -> None:
        self._row = row

    @cached_property
    def value(self) -> Any:
        return self._row.value()
