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

from .._torch import tensor_hooks
from .._torch.modules import HOOKS, STATE, is_initialized, state_in
from .aspects import ABSENT, look, with_kinds
from .classes import shadows
from .compiled import CompiledChecks

Read = tuple[str, object, str, object]
"""(path, object, attribute, value); the object is a class where the class holds the attribute."""


class Members:
    """The items of many dicts by identity: nothing added, nothing gone, under the same keys."""

    def __init__(self, holders: Sequence[dict[Any, Any]]) -> None:
        self._holders = holders
        self._sizes = list(map(len, holders))
        self._keys = list(chain.from_iterable(holders))
        self._named = all(type(key) is str for key in self._keys)
        self.expected = self._values()

    def hold(self, excuse: Callable[[object, object], bool] | None = None) -> bool:
        """True when nothing moved; ``excuse(old, new)`` may accept a value that did."""
        if list(map(len, self._holders)) != self._sizes or not self._same_keys():
            return False
        now = self._values()
        if all(map(operator.is_, now, self.expected)):
            return True
        return excuse is not None and all(
            new is old or excuse(old, new) for old, new in zip(self.expected, now, strict=True)
        )

    def _values(self) -> list[Any]:
        return list(chain.from_iterable(map(dict.values, self._holders)))

    def _same_keys(self) -> bool:
        keys = chain.from_iterable(self._holders)
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
        self._tensors, self._of_tensors = tensors, tensor_hooks(tensors)
        self._present = [held for *_, held in self._full]
        self._present += [held for held in self._of_tensors if held is not None]
        self._members = Members(self._present)
        self._handles = RemovableHandle.next_id

    def hold(self) -> bool:
        """True when no hook came or went."""
        if RemovableHandle.next_id != self._handles:
            if any(own[name] for own, name in self._absent) or not self._none_came():
                return False
            self._handles = RemovableHandle.next_id
        return all(own[name] is held for own, name, held in self._full) and self._members.hold()

    def _none_came(self) -> bool:
        """True when no tensor without a hook has one now. A dict that hooks leave is empty."""
        now = tensor_hooks(self._tensors)
        return all(a is b or not (a or b) for a, b in zip(now, self._of_tensors, strict=True))

    def compile(self, checks: CompiledChecks) -> None:
        """Add this to the compiled checks."""
        for own, name, held in self._full:
            checks.item(own, name, held)
        checks.members(*self._present)
        checks.hooks(RemovableHandle, "next_id", self._absent, self._none_came)


def same_attribute(attributes: Mapping[str, object], name: str, value: object) -> bool:
    """True when an attribute still has the value that was read, by `same_value`."""
    return same_value(value, attributes.get(name, ABSENT))


def same_value(old: object, new: object) -> bool:
    """True for the same object, or for an equal `look`, unless it has numbers that move."""
    if old is new:
        return True
    found = look(old)
    return found == look(new) and with_kinds(found) is found


class Attributes:
    """Attributes that build read. Almost always they are the very objects that they were."""

    def __init__(self, reads: Sequence[Read]) -> None:
        self._reads = reads
        self._places = [(vars(owner), name) for _, owner, name, _ in reads]
        self._last = [value for *_, value in reads]

    def hold(self) -> bool:
        """True when each attribute is as it was read."""
        now = [attributes.get(name, ABSENT) for attributes, name in self._places]
        if not all(map(operator.is_, now, self._last)):
            if self.which():
                return False
            self._last = now
        return True

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
    """The classes of modules, their attributes, and the dicts of their state.

    Attributes that shadow a function of the class, as a patched ``forward``, are compared.
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
        """Add the modules' classes, attributes and state dicts to the compiled checks."""
        for module, own in zip(self._modules, self._own, strict=True):
            plain = is_initialized(own)
            checks.instance(module, own, STATE if plain else ())
            checks.members(*(state_in(own) if plain else ()))
        for own, name, value in self._patched:
            checks.item(own, name, value)
