"""The check of an optimizer: its param groups, their settings, its slots."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Sequence, Set as AbstractSet
from itertools import chain, compress
from types import MethodType
from typing import Any

import torch

from .._torch.optimizers import OPTIMIZER_ATTRIBUTES, step_hook_dicts, step_hooks
from ..objects import is_a
from .aspects import Same, elements, entries_in, look
from .checks import Members
from .compiled import CompiledChecks


class OwnState:
    """State of an optimizer besides tensors and param groups that its ``step()`` may depend on.

    The optimizer's class and step, hooks around the step, and looks at its attributes.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self.attributes = {n: look(v, deep=False) for n, v in _attributes(optimizer).items()}
        hooks = tuple(tuple(map(Same, held)) for held in step_hooks(optimizer))
        step = Same(type(optimizer).step)
        self.key = (type(optimizer), step, hooks, tuple(self.attributes.items()))

    def moved(self) -> str:
        """The attribute that is another one now; empty when none is."""
        now, before = OwnState(self._optimizer).attributes, self.attributes
        words = (f"{type(self._optimizer).__name__}.{name}" for name in now)
        changed = (n in before and now[n] != before[n] for n in now)
        return next(compress(words, changed), "")


def _attributes(optimizer: torch.optim.Optimizer) -> dict[str, object]:
    own = vars(optimizer)
    return {name: own[name] for name in own if name not in _KNOWN_ATTRIBUTES}


_KNOWN_ATTRIBUTES = frozenset({"state", "param_groups", "defaults", *OPTIMIZER_ATTRIBUTES})


class OptimizerGuard:
    """Param groups and slots of one optimizer. Numbers may move; everything else must stay."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._groups = list(optimizer.param_groups)
        self._parameters = [list(group["params"]) for group in self._groups]
        self._settings = list(map(_settings, self._groups))
        self._state = optimizer.state
        self._owners = Members([optimizer.state])
        self._slots = Members(_slots(optimizer))
        self._inside = self._inside_slots()
        self._own = OwnState(optimizer)

    def broken(self) -> str:
        """The change found, in words; empty when there is none."""
        optimizer = self.optimizer
        if optimizer.state is not self._state or not self._owners.hold(_numbers_moved):
            return "the state of an optimizer was replaced or grew"
        if not self._slots.hold(_same_but_for_numbers) or not self._inside_holds():
            return "a slot of an optimizer was replaced"
        groups = optimizer.param_groups
        if len(groups) != len(self._groups) or not all(map(operator.is_, groups, self._groups)):
            return "the param groups of an optimizer were replaced"
        for i, group in enumerate(groups):
            params, expected = group["params"], self._parameters[i]
            if len(params) != len(expected) or not all(map(operator.is_, params, expected)):
                return "the parameters of a param group changed"
            if not self._settings_hold(i):
                return f"a setting of param group {i} changed"
        if not self._own_holds():
            return "an attribute, a hook or the step() of an optimizer changed"
        return ""

    def _own_holds(self) -> bool:
        return OwnState(self.optimizer).key == self._own.key

    def _inside_slots(self) -> list[object]:
        """The contents of mutable slots, which may change while a slot stays the same object."""
        held = chain(*map(dict.values, _slots(self.optimizer)), self.optimizer.state.values())
        known = set(map(id, _slots(self.optimizer)))
        values = (value for value in held if _is_mutable(value) and id(value) not in known)
        return [_frozen(value, known) for value in values]

    def _inside_holds(self) -> bool:
        return self._inside_slots() == self._inside

    def _settings_hold(self, i: int) -> bool:
        return _settings(self._groups[i]) == self._settings[i]

    def compile(self, checks: CompiledChecks) -> None:
        """Add this to the compiled checks."""
        optimizer = self.optimizer
        checks.attribute(optimizer, "state", optimizer.state)
        checks.slots(optimizer.state, *_slots(optimizer))
        if self._inside:
            checks.call(self._inside_holds, ())
        if any(map(_is_mutable, _attributes(optimizer).values())):
            checks.call(self._own_holds, ())
        else:
            cls = type(optimizer)
            checks.instance(optimizer, vars(optimizer), ())
            checks.attribute(cls, "step", cls.step)
            checks.members(vars(optimizer), *step_hook_dicts(optimizer))
        checks.attribute(optimizer, "param_groups", optimizer.param_groups)
        checks.elements(optimizer.param_groups)
        for i, group in enumerate(self._groups):
            checks.elements(group["params"])
            if any(_is_mutable(group[key]) for key in group if key != "params"):
                checks.item(group, "params", group["params"])
                checks.call(self._settings_hold, (i,))
            else:
                checks.settings(group)  # and the list of parameters is the same


def _same_but_for_numbers(old: object, new: object) -> bool:
    if type(old) is type(new) is MethodType:
        return old.__self__ is new.__self__ and old.__func__ is new.__func__
    return _numbers_moved(old, new)


def _numbers_moved(old: object, new: object) -> bool:
    return type(old) is type(new) and _is_number(new)


def _is_number(value: object) -> bool:
    return issubclass(type(value), numbers.Real) and not is_a(value, bool)


def _slots(optimizer: torch.optim.Optimizer) -> list[dict[Any, Any]]:
    """The dicts of slots; under a key of its own an optimizer may keep another value."""
    return [slots for slots in optimizer.state.values() if isinstance(slots, dict)]


def _settings(group: dict[str, object]) -> object:
    return _frozen({key: value for key, value in group.items() if key != "params"}, {id(group)})


def _frozen(value: object, known: AbstractSet[int]) -> object:
    """The form of a setting, or of a slot's value, to compare: numbers by type, others by look.

    ``known``: by identity, containers whose content is compared already, or which are around.
    """
    if id(value) in known:
        return Same(value)
    if is_a(value, (tuple, list)):
        return type(value), tuple(_frozen(item, known | {id(value)}) for item in elements(value))
    if is_a(value, dict):
        return {key: _frozen(item, known | {id(value)}) for key, item in entries_in(value)}
    return type(value) if _is_number(value) else look(value, deep=False, level=1)


class NestedGuard:
    """The dicts and lists inside of param groups and slots: each place keeps its own.

    What holds one beside the optimizer, another place of an optimizer too, reads and writes the
    same values.

    Args:
        nested: those of a `Step`.
        renewed: the names of those that the step itself replaces.
    """

    def __init__(self, nested: Sequence[Any], renewed: AbstractSet[str]) -> None:
        self._nested = [one for one in nested if one.fqn not in renewed]

    def broken(self) -> str:
        """The change found, in words; empty when there is none."""
        return next((f"{one.fqn} was replaced" for one in self._nested if not one.is_there), "")

    def compile(self, checks: CompiledChecks) -> None:
        """Add this to the compiled checks."""
        if self._nested:
            checks.call(self._holds, ())

    def _holds(self) -> bool:
        return not self.broken()


def _is_mutable(value: object) -> bool:
    """True for a list or dict, and for a tuple with one in it: its content may change alone."""
    if is_a(value, tuple):
        return any(map(_is_mutable, elements(value)))
    return is_a(value, (list, dict))
