"""The check of TorchScript modules, whose attributes and flags are in C++: read one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch

from .._torch.scripts import (
    can_fuse,
    names_of,
    ops_of,
    ops_of_functions,
    optimizes,
    reader_of,
    set_attribute,
)
from ..objects import is_a
from .aspects import look
from .checks import same_value

_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, torch.Tensor)
_TO_LIST = "prim::tolist"
_READS = "reads a tensor by tolist()"
"""An op of TorchScript's own that no listener hears."""

_known: WeakKeyDictionary[object, tuple[tuple[str, ...], str]] = WeakKeyDictionary()
"""Module -> the names of its attributes, and what of its code cannot be followed."""


def is_script(module: object) -> bool:
    """True for what torch.jit.script, trace, load and freeze make."""
    return is_a(module, torch.jit.ScriptModule)


class Scripts:
    """The check of TorchScript modules: flags, attributes, parameters, buffers."""

    def __init__(self, modules: Iterable[Any]) -> None:
        self._modules = [module for module in modules if is_script(module)]
        self._held = [(m, reader_of(m), name) for m in self._modules for name in _about(m)[0]]
        self._expected = [get(name) for _, get, name in self._held]
        self._optimizes = bool(self._modules) and optimizes()

    def __bool__(self) -> bool:
        return bool(self._modules)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the attributes checked."""
        return [value for value in self._expected if isinstance(value, torch.Tensor)]

    @property
    def impossible(self) -> tuple[object, str]:
        """A module that no program can follow, and why; an empty reason: there is none."""
        for module in self._modules:
            why = _about(module)[1]
            if why:
                return module, why
        for (module, _, name), value in zip(self._held, self._expected, strict=True):
            if not _is_readable(value):
                return module, f"its attribute {name} is a {type(value).__name__}"
            if isinstance(value, torch.Tensor) and can_fuse(value.device.type):
                return module, "its ops are fused to kernels that no program hears"
        return None, ""

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for modules that are in the same state, as long as they live."""
        return (self._optimizes, *map(look, self._expected))

    def hold(self) -> bool:
        """True when nothing moved."""
        if any(True for _ in self.moved()):
            return False
        return not self._modules or optimizes() == self._optimizes

    def put_back(self) -> None:
        """Restore the attributes that have changed."""
        for module, name, expected in self.moved():
            set_attribute(module, name, expected)

    def moved(self) -> Iterator[tuple[Any, str, object]]:
        """(module, attribute, what it was) where it is another now."""
        for (module, get, name), expected in zip(self._held, self._expected, strict=True):
            value = get(name)
            if not same_value(expected, value):
                yield module, name, expected


def _about(module: object) -> tuple[tuple[str, ...], str]:
    found = _known.get(module)
    if found is None:
        names = names_of(module)
        unheard = _READS if _TO_LIST in ops_of(module) else ""
        if names is None:
            names, unheard = (), "its attributes cannot be listed"
        found = _known[module] = names, unheard
    return found


def unheard_in(function: Any) -> str:
    """What a function of TorchScript does that no listener hears; empty for nothing."""
    return _READS if _TO_LIST in ops_of_functions([function]) else ""


def _is_readable(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_readable, value))
    if isinstance(value, dict):
        return all(map(_is_readable, (*value, *value.values())))
    return isinstance(value, _PLAIN)
