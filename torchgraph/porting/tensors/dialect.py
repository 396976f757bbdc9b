"""Methods of tensors and modules, by who calls them: code for OneFlow gets OneFlow's meaning.

A tensor is torch's, and its class has one ``//``. In OneFlow ``-3 // 2`` is -1, and code of torch
relies on -2. So those members of `torch.Tensor` and `torch.nn.Module` for which the table has an
adapter are replaced by one that asks which module calls: a module that has asked for a name of
OneFlow's gets the adapter, every other one, torch among them, what it always got. Members that
torch lacks are there for all.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from functools import cached_property, wraps
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from ..names import Name, table

_LIBRARIES = tuple(str(Path(sysconfig.get_path(name))) for name in ("stdlib", "purelib", "platlib"))
_CLASSES: dict[str, type] = {
    "Tensor": torch.Tensor,
    "nn.Module": torch.nn.Module,
    "nn.Parameter": torch.nn.Parameter,
}
_speaking: dict[str, bool] = {}
"""By the name of a module: whether it is code for OneFlow."""
_scripts_speak = False


def heard(frame: FrameType) -> None:
    """The module of a frame has asked for a name of OneFlow's."""
    _speaking[frame.f_globals.get("__name__", "")] = True


def all_scripts_speak() -> None:
    """From now on code that is not installed as a library is code for OneFlow."""
    global _scripts_speak
    _scripts_speak = True
    _speaking["__main__"] = True


def speaks(frame: FrameType) -> bool:
    """Whether the code of a frame is for OneFlow."""
    name = frame.f_globals.get("__name__", "")
    known = _speaking.get(name)
    if known is None and _scripts_speak:
        file = frame.f_code.co_filename
        is_ours = name.partition(".")[0] in ("torch", "torchgraph")
        known = _speaking[name] = not is_ours and not file.startswith(("<", *_LIBRARIES))
    return bool(known)


def install() -> None:
    """Give the classes the members of the table; once."""
    for name, row in table().items():
        owner = _CLASSES.get(row.owner)
        member = name.rpartition(".")[2]
        if owner is None or not (row.is_adapted or row.is_refused):
            continue
        known = getattr(owner, member, None)
        if getattr(known, "_is_of_two_meanings", False):
            return
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

    of_two_meanings._is_of_two_meanings = True  # type: ignore[attr-defined]
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
