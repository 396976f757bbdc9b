"""Methods of tensors and modules, by who calls them: code for OneFlow gets OneFlow's meaning.

A tensor is torch's, and its class has one ``//``. In OneFlow ``-3 // 2`` is -1, and code of torch
relies on -2. So those members of `torch.Tensor` and `torch.nn.Module` for which the table has an
adapter are replaced by one that asks which module takes it: a module that imports OneFlow's names
gets the adapter, every other one, torch among them, what it always got.
"""

from __future__ import annotations

import opcode
import sys
import sysconfig
from functools import cached_property
from pathlib import Path
from types import FrameType, MethodType, ModuleType
from typing import Any

import torch

from ..names import Name, table

_STANDARD = str(Path(sysconfig.get_path("stdlib")))
_INSTALLED = {"site-packages", "dist-packages"}
_CLASSES: dict[str, type] = {
    "Tensor": torch.Tensor,
    "nn.Module": torch.nn.Module,
    "nn.Parameter": torch.nn.Parameter,
}
_speaking: dict[str, bool] = {}
"""By the name of a module: whether it is code for OneFlow."""
_packages: set[str] = set()
"""Packages, and modules outside of any, of which a module is."""
_looked_at: dict[str, int] = {}
"""By the name of a module that is none: how many globals it had."""
_scripts_speak = False
_is_installed = False
_TAKES_A_NAME = {
    opcode.opmap[one]
    for one in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM", "IMPORT_STAR", "CALL_INTRINSIC_1")
    if one in opcode.opmap
}


def heard(frame: FrameType) -> None:
    """A frame has asked for a name of OneFlow's: its module speaks, if it did so by its own code.

    Functions in C look into all modules, as `pickle` does for an object that does not say its own.
    """
    name = frame.f_globals.get("__name__")
    if name is None or _speaking.get(name):
        return
    asks = frame.f_code.co_code[frame.f_lasti] in _TAKES_A_NAME
    if asks or _imports_it(frame.f_globals) or _imports_it(frame.f_locals):
        _now_speaks(name)


def _now_speaks(name: str) -> None:
    _speaking[name] = True
    _packages.add(name.partition(".")[0])


def all_scripts_speak() -> None:
    """From now on code that is not installed as a library is code for OneFlow."""
    global _scripts_speak
    _scripts_speak = True
    _now_speaks("__main__")


def speaks(frame: FrameType) -> bool:
    """Whether the code of a frame is for OneFlow."""
    name = frame.f_globals.get("__name__")
    if name is None:  # code that was made of text, by torch.fx among others
        return _imports_it(frame.f_globals) or (_scripts_speak and _made_by_a_script(frame))
    known = _speaking.get(name)
    if known is None and _scripts_speak:
        # The file of the module: what dataclasses make of text stands in it, too.
        file = str(frame.f_globals.get("__file__") or frame.f_code.co_filename)
        if file.startswith("<"):
            return _made_by_a_script(frame)
        is_ours = name.partition(".")[0] in ("torch", "torchgraph")
        known = _speaking[name] = not is_ours and not _is_installed_file(file)
    if known or _looked_at.get(name) == len(frame.f_globals):
        return bool(known)
    _looked_at[name] = len(frame.f_globals)
    if _imports_it(frame.f_globals):
        _now_speaks(name)
    return _speaking.get(name, False)


def _made_by_a_script(frame: FrameType) -> bool:
    """Whether what runs code that is in no file, by `exec` among others, speaks."""
    return frame.f_back is not None and speaks(frame.f_back)


def _is_installed_file(file: str) -> bool:
    """In one of Python's own folders, or in one of a user, of Debian's, of another environment."""
    return file.startswith(_STANDARD) or not _INSTALLED.isdisjoint(Path(file).parts)


def _is_library(frame: FrameType) -> bool:
    """Whether the code of a frame is of an installed package without a module for OneFlow."""
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    if package == "torchgraph" or package in _packages or speaks(frame):
        return False
    return _is_installed_file(frame.f_code.co_filename)


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
    for name, row in table().items():
        owner = _CLASSES.get(row.owner)
        member = name.rpartition(".")[2]
        if owner is not None and (row.is_adapted or row.is_refused):
            setattr(owner, member, _member(owner, row, getattr(owner, member, None)))


def _member(owner: type, row: Name, known: Any) -> Any:
    if known is not None:
        return _Member(row, known)
    # Each name in `dir(module)` has to be there; of a tensor's that never held.
    return _Added(row) if issubclass(owner, torch.Tensor) or row.is_refused else row.value()


class _Row:
    """A member of the table, in a class of torch's."""

    def __init__(self, row: Name) -> None:
        self._row = row

    @cached_property
    def _meant(self) -> Any:
        """The adapter; an error where the row is refused."""
        return self._row.value()

    def _bound(self, instance: Any, owner: type | None) -> Any:
        meant = self._meant
        if hasattr(type(meant), "__get__"):
            return meant.__get__(instance, owner)
        return meant if instance is None else MethodType(meant, instance)


class _Added(_Row):
    """A member that torch lacks: there for all but installed libraries, which may look for it.

    Many ask ``hasattr(tensor, "to_local")`` to tell a DTensor.
    """

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        if _is_library(sys._getframe(1)):
            member = self._row.name.rpartition(".")[2]
            raise AttributeError(f"{type(instance).__name__!r} object has no attribute {member!r}")
        return self._bound(instance, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._meant(*args, **kwargs)


class _Member(_Row):
    """A member that torch has. Who does not speak OneFlow gets torch's own, also of the class.

    Tables that are keyed by ``torch.Tensor.to``, of which torch has many, hold before and after.
    """

    def __init__(self, row: Name, known: Any) -> None:
        super().__init__(row)
        self._known, self._of_torch = known, known.__get__
        self.__doc__ = known.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if speaks(sys._getframe(1)):
            return self._bound(instance, owner)
        return self._of_torch(instance, owner)

    # What looks past `__get__`, as torch.compile does for subclasses, finds torch's own.

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._known)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._known, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._known(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return self is other or bool(self._known == other)

    def __hash__(self) -> int:
        return hash(self._known)
