"""The checks of modules, one class per concern. Each compares Python lists made by C iterators.

Each also adds itself to the compiled checks (`torchgraph._guards`), as things stand. Those say "as
it was", or leave the question to Python: what may change, and what to call it, is decided here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from .._torch.modules import HOOKS, STATE, is_initialized, state_in
from .classes import shadows
from .compiled import CompiledChecks
from .tensors import TensorHooks

Read = tuple[str, object, str, object]
"""(path, object, attribute, value); the object is a class where the class holds the attribute."""


class Members:
    """What many dicts hold, by identity: nothing added, nothing gone, under the same keys."""

    def __init__(self, holders: Sequence[dict[Any, Any]]) -> None:
        self._full = [held for held in holders if held]
        self._empty = [held for held in holders if not held]
        self._sizes = list(map(len, self._full))
        self._keys = list(chain.from_iterable(self._full))
        self._named = all(type(key) is str for key in self._keys)
        self.expected = list(chain.from_iterable(map(dict.values, self._full)))

    def hold(self, excuse: Callable[[object, object], bool] | None = None) -> bool:
        """True when nothing moved; ``excuse(old, new)`` may accept a value that did."""
        if any(self._empty) or list(map(len, self._full)) != self._sizes:
            return False
        if not self._same_keys():
            return False
        now = list(chain.from_iterable(map(dict.values, self._full)))
        if all(map(operator.is_, now, self.expected)):
            return True
        return excuse is not None and all(
            new is old or excuse(old, new) for old, new in zip(self.expected, now, strict=True)
        )

    def _same_keys(self) -> bool:
        keys = chain.from_iterable(self._full)
        if self._named:
            return list(keys) == self._keys
        return all(map(operator.is_, keys, self._keys))


class Hooks:
    """Hooks of modules and gradients. Each comes with a RemovableHandle, and torch numbers those.

    Hooks that are there are looked at in each check, places for others when new ones were made.
    """

    def __init__(self, modules: Sequence[object], tensors: Sequence[torch.Tensor]) -> None:
        places = [(vars(module), name) for module in modules for name in HOOKS]
        self._full = [(own, name, own[name]) for own, name in places if own[name]]
        self._absent = [(own, name) for own, name in places if not own[name]]
        self._present = Members([held for *_, held in self._full])
        self._of_tensors = TensorHooks(tensors)
        self._handles = RemovableHandle.next_id

    def hold(self) -> bool:
        """True when no hook came or went."""
        if RemovableHandle.next_id != self._handles:
            if any(own[name] for own, name in self._absent) or not self._of_tensors.none_came():
                return False
            self._handles = RemovableHandle.next_id
        if not all(own[name] is held for own, name, held in self._full):
            return False
        return self._present.hold() and self._of_tensors.hold()

    def compile(self, checks: CompiledChecks) -> None:
        """Add this to the compiled checks."""
        for own, name, held in self._full:
            checks.item(own, name, held)
            checks.members(held)
        checks.members(*self._of_tensors.dicts)
        checks.hooks(RemovableHandle, "next_id", self._absent, self._of_tensors.none_came)


class _Absent:
    """What a read finds where the object itself holds no such attribute."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()

_COMPARABLE = (int, str, bytes, set, frozenset, torch.dtype, torch.device)


def same_attribute(attributes: Mapping[str, object], name: str, value: object) -> bool:
    """True when an attribute is as it was read: equal if `same_value` knows it, else the same."""
    return same_value(value, attributes.get(name, ABSENT))


def same_value(old: Any, new: Any) -> bool:
    """The same object, or an equal number, string, NumPy array, or container of such.

    Of one type: 2 and 2.0 are equal, and so are 0.0 and -0.0, but they are not the same program.
    """
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, (float, complex)):
        return repr(old) == repr(new)
    if isinstance(old, (tuple, list)):
        return len(old) == len(new) and all(map(same_value, old, new))
    if isinstance(old, dict):
        return list(old) == list(new) and all(map(same_value, old.values(), new.values()))
    if hasattr(old, "tobytes") and hasattr(old, "shape"):
        kinds = [(array.dtype, array.shape) for array in (old, new)]
        return bool(kinds[0] == kinds[1]) and bool(old.tobytes() == new.tobytes())
    return isinstance(old, _COMPARABLE) and old == new


class Attributes:
    """Attributes that build read. Almost always they are the very objects that they were."""

    def __init__(self, reads: Sequence[Read]) -> None:
        self._reads = reads
        by_owner: dict[int, tuple[Mapping[str, object], list[str]]] = {}
        self._absent: list[tuple[Mapping[str, object], str]] = []
        expected: dict[int, list[object]] = {}
        for _, owner, name, value in reads:
            if value is ABSENT:
                self._absent.append((vars(owner), name))
            else:
                by_owner.setdefault(id(owner), (vars(owner), []))[1].append(name)
                expected.setdefault(id(owner), []).append(value)
        # One name twice: itemgetter then gives a tuple for a single name, too.
        self._held = [
            (operator.itemgetter(*names, names[0]), held) for held, names in by_owner.values()
        ]
        self._expected = [value for values in expected.values() for value in (*values, values[0])]

    def hold(self) -> bool:
        """True when each attribute is as it was read."""
        try:
            now = list(chain.from_iterable([get(held) for get, held in self._held]))
        except KeyError:
            return False
        if not all(map(operator.is_, now, self._expected)):
            if self.which():
                return False
            self._expected = now
        return not any(name in held for held, name in self._absent)

    def which(self) -> str:
        """The first attribute that changed; empty when none did."""
        for path, owner, name, value in self._reads:
            if not same_attribute(vars(owner), name, value):
                return f"{path}.{name}"
        return ""

    def compile(self, checks: CompiledChecks) -> None:
        """Add this to the compiled checks."""
        for _, owner, name, value in self._reads:
            held: Any = vars(owner)
            if isinstance(owner, type):  # its attributes are in no plain dict
                checks.call(same_attribute, (held, name, value))
            elif value is ABSENT:
                checks.absent(held, name)
            else:
                checks.item(held, name, held[name])


class Instances:
    """What each module is and holds itself: its class, which attributes, which dicts of state.

    Those that take the place of a function of its class, as a patched ``forward``, are compared.
    """

    def __init__(self, modules: Sequence[object]) -> None:
        self._modules = modules
        self._classes = list(map(type, modules))
        self._own = [vars(module) for module in modules]
        self._keys = list(chain.from_iterable(self._own))
        # TorchScript's have views of what is in C++ instead, or nothing: see `Scripts`.
        self._plain = [own for own in self._own if is_initialized(own)]
        self._state = list(chain.from_iterable(map(state_in, self._plain)))
        self._patched = shadows(modules)

    def hold(self) -> bool:
        """True when nothing changed but the values of attributes."""
        if list(map(type, self._modules)) != self._classes:
            return False
        if list(chain.from_iterable(self._own)) != self._keys:
            return False
        state = chain.from_iterable(map(state_in, self._plain))
        if not all(map(operator.is_, state, self._state)):
            return False
        return all(own.get(name) is value for own, name, value in self._patched)

    def compile(self, checks: CompiledChecks) -> None:
        """Add this, and what those dicts hold, to the compiled checks."""
        for module, own in zip(self._modules, self._own, strict=True):
            plain = is_initialized(own)
            checks.instance(module, own, STATE if plain else ())
            checks.members(*(state_in(own) if plain else ()))
        for own, name, value in self._patched:
            checks.item(own, name, value)
