"""Methods of tensors and modules, by who calls them: code for OneFlow gets OneFlow's meaning.

A tensor is torch's, and its class has one ``//``. In OneFlow ``-3 // 2`` is -1, and code of torch
relies on -2. So those members of `torch.Tensor` and `torch.nn.Module` for which the table has an
adapter are replaced by one that asks which module takes it: one that speaks OneFlow (`speakers`)
gets the adapter, every other one, torch among them, what it always got.
"""

from __future__ import annotations

import sys
from functools import cached_property
from types import MethodType
from typing import Any

import torch

from ..names import Name, table
from .arrays import as_arrays
from .speakers import is_library, speaks

_CLASSES: dict[str, type] = {
    "Tensor": torch.Tensor,
    "nn.Module": torch.nn.Module,
    "nn.Parameter": torch.nn.Parameter,
}
_is_installed = False


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
        if is_library(sys._getframe(1)):
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
