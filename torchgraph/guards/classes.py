"""The check of classes: a `forward` that is patched, a method or a property that comes or goes."""

from __future__ import annotations

import gc
import operator
from collections.abc import Iterable, Mapping
from itertools import chain
from types import FunctionType
from typing import Any

import torch

from .._torch.patching import patching
from .compiled import CompiledChecks

_NEVER_MOVE = (object, type, torch.Tensor.__base__)


def stands_in(function: Any, cls: type, name: str) -> object:
    """Mark ``function``, a temporary member of a class, so that it is no change of the class."""
    function.stands_for = vars(cls).get(name)
    return function


def functions(cls: type) -> dict[str, object]:
    """The members of a class that may decide what its objects do: functions and descriptors.

    Plain values are compared where they are read, but for those of torch's classes.
    """
    found = {}
    for name, value in vars(cls).items():
        of_torch = cls.__module__.startswith("torch.") and not name.startswith("_")
        if (
            hasattr(value, "__get__")
            or callable(value)
            or isinstance(value, torch.Tensor)
            or of_torch
        ):
            ours = name.startswith("__") or isinstance(value, FunctionType)
            real = getattr(value, "stands_for", value) if ours else value
            if real is not None:
                found[name] = real
    return found


def lines_of(classes: Iterable[type]) -> list[type]:
    """The classes that may change among the given ones and their bases, each once."""
    known = dict.fromkeys(base for cls in dict.fromkeys(classes) for base in cls.__mro__)
    return [cls for cls in known if cls not in _NEVER_MOVE]


class Classes:
    """Functions of classes and their bases, by identity, and the order of the bases."""

    def __init__(self, classes: Iterable[type]) -> None:
        given = list(dict.fromkeys(classes))
        self._orders = [(cls, cls.__mro__) for cls in given]
        with patching.alone():
            self._expected = [(cls, functions(cls)) for cls in lines_of(given)]
            self._last = self._content()

    def hold(self) -> bool:
        """True when no function is another one. Almost always nothing is."""
        now = self._content()
        if now[0] == self._last[0] and all(map(operator.is_, now[1], self._last[1])):
            return all(cls.__mro__ is order for cls, order in self._orders)
        if self.changed():
            return False
        self._last = now
        return True

    def _content(self) -> tuple[list[str], list[object]]:
        spaces: list[Mapping[str, object]] = [vars(cls) for cls, _ in self._expected]
        values = chain.from_iterable(space.values() for space in spaces)
        return list(chain.from_iterable(spaces)), list(values)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for two checks of the same functions, as long as one of them lives."""
        held = (
            (id(cls), tuple((name, id(value)) for name, value in sorted(found.items())))
            for cls, found in self._expected
        )
        return (*held, *(tuple(map(id, order)) for _, order in self._orders))

    def changed(self) -> str:
        """The first function that is another one, as ``Net.forward``; empty when none is."""
        for cls, order in self._orders:
            if cls.__mro__ is not order and cls.__mro__ != order:
                return f"the bases of {cls.__qualname__}"
        for cls, expected in self._expected:
            now = functions(cls)
            for name in {**expected, **now}:
                if now.get(name) is not expected.get(name):
                    return f"{cls.__qualname__}.{name}"
        return ""

    def compile(self, checks: CompiledChecks) -> None:
        """Add this to the compiled checks."""
        for cls, _ in self._orders:
            checks.attribute(cls, "__mro__", cls.__mro__)
        for cls, _ in self._expected:
            held = dict_of(cls)
            if held is None:
                checks.call(self.hold, ())
                return
            now = functions(cls)
            checks.instance(cls, held, tuple(name for name in held if name in now))


def dict_of(cls: type) -> dict[object, object] | None:
    """The dict behind ``vars(cls)``, which is a view of it."""
    found = gc.get_referents(vars(cls))
    return found[0] if len(found) == 1 and type(found[0]) is dict else None


def shadows(modules: Iterable[object]) -> list[tuple[dict[str, object], str, object]]:
    """(attributes, name, value): what modules hold themselves in place of a function of theirs."""
    names: dict[type, set[str]] = {}
    found = []
    for module in modules:
        cls = type(module)
        if cls not in names:
            held: Iterable[Mapping[str, object]] = (vars(base) for base in cls.__mro__)
            names[cls] = {n for space in held for n, value in space.items() if _is_function(value)}
        own = vars(module)
        found += [(own, name, own[name]) for name in own.keys() & names[cls]]
    return found


def _is_function(value: object) -> bool:
    return callable(value) or isinstance(value, (staticmethod, classmethod))
