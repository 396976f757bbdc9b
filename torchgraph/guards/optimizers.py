"""The check of an optimizer: its param groups, their settings, its slots."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Iterable, Iterator
from itertools import compress

import torch

from .._torch.optimizers import OPTIMIZER_ATTRIBUTES, step_hook_dicts, step_hooks
from ..ir.program import TensorMeta
from .checks import Members
from .compiled import CompiledChecks


class OwnState:
    """What an optimizer's ``step()`` may go by besides states and param groups.

    Its class and step, hooks around the step, and its attributes: plain values by value, others by
    identity, lists and dicts by what they hold, too.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self.held = (*step_hooks(optimizer), *_attributes(optimizer).values())
        """Kept, so that nothing else gets its identity."""
        hooks = tuple(tuple(map(id, held)) for held in step_hooks(optimizer))
        attributes = {name: _own(value) for name, value in _attributes(optimizer).items()}
        self.attributes = attributes
        self.key = (type(optimizer), id(type(optimizer).step), hooks, tuple(attributes.items()))

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


def _own(value: object) -> object:
    if isinstance(value, (list, dict)):
        return (id(value), tuple(map(plain_key, _content(value))))
    return plain_key(value)


def plain_key(value: object) -> object:
    """Equal for the same object, or the same number or string."""
    plain = isinstance(value, (bool, int, float, complex, str, type(None)))
    return (type(value), repr(value)) if plain else id(value)


class OptimizerGuard:
    """Param groups and slots of one optimizer. Numbers may move; everything else must stay."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._groups = list(optimizer.param_groups)
        self._parameters = [list(group["params"]) for group in self._groups]
        self._sizes = list(map(len, self._groups))
        self._state = optimizer.state
        self._owners = Members([optimizer.state])
        self._slots = Members(list(optimizer.state.values()))
        self._inside = _Inside(optimizer.state.values())
        getters = [tuple(key for key in group if key != "params") for group in self._groups]
        self._getters = [operator.itemgetter(*keys) if keys else None for keys in getters]
        self._last = [self._values(i) for i in range(len(self._groups))]
        self._mutable = [any(True for _ in _containers(values)) for values in self._last]
        self._frozen = [_frozen(values) for values in self._last]
        self._own = OwnState(optimizer)
        own = _attributes(optimizer).values()
        self._holds_more = any(True for _ in _containers(own))

    def broken(self) -> str:
        """What changed, in words; empty when nothing did."""
        optimizer = self.optimizer
        if optimizer.state is not self._state or not self._owners.hold():
            return "the state of an optimizer was replaced or grew"
        if not self._slots.hold(_numbers_moved) or not self._inside.hold():
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

    def compile(self, checks: CompiledChecks) -> None:
        """Add this to the compiled checks."""
        optimizer = self.optimizer
        checks.attribute(optimizer, "state", optimizer.state)
        checks.members(optimizer.state)
        checks.slots(*optimizer.state.values())
        if self._inside:
            checks.call(self._inside.hold, ())
        if self._holds_more:
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
            if self._mutable[i]:
                checks.item(group, "params", group["params"])
                checks.call(self._settings_hold, (i,))
            else:
                checks.settings(group)  # and the list of parameters is the same

    def _settings_hold(self, i: int) -> bool:
        if len(self._groups[i]) != self._sizes[i]:
            return False
        try:
            values = self._values(i)
        except KeyError:
            return False
        last = self._last[i]
        if not self._mutable[i] and all(map(operator.is_, values, last)):
            return True
        if _frozen(values) != self._frozen[i]:
            return False
        self._last[i] = values
        return True

    def _values(self, i: int) -> tuple[object, ...]:
        get = self._getters[i]
        found = () if get is None else get(self._groups[i])
        return found if isinstance(found, tuple) and self._sizes[i] > 2 else (found,)


def _numbers_moved(old: object, new: object) -> bool:
    return type(old) is type(new) and _is_number(new)


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _frozen(values: object) -> object:
    """A param group's settings with the numbers, which may move, replaced by their type."""
    if isinstance(values, (tuple, list)):
        return (type(values), tuple(map(_frozen, values)))
    if _is_number(values):
        return type(values)
    if isinstance(values, torch.Tensor):
        return (TensorMeta.of(values), id(values))
    if isinstance(values, dict):
        return tuple((key, _frozen(value)) for key, value in values.items())
    plain = isinstance(values, (bool, str, type(None), torch.dtype, torch.device))
    return (type(values), values if plain else id(values))


def _containers(values: Iterable[object]) -> Iterator[list[object] | dict[object, object]]:
    """The lists and dicts among ``values``, and inside of those: their content may change alone."""
    for value in values:
        if isinstance(value, (list, dict)):
            yield value
        if isinstance(value, (list, tuple)):
            yield from _containers(value)
        elif isinstance(value, dict):
            yield from _containers(value.values())


class _Inside:
    """What lists and dicts inside of slots hold, by identity; numbers may move."""

    def __init__(self, slots: Iterable[dict[object, object]]) -> None:
        found = [held for owned in slots for held in _containers(owned.values())]
        self._held = [(held, _content(held)) for held in found]

    def __bool__(self) -> bool:
        return bool(self._held)

    def hold(self) -> bool:
        """True when nothing but numbers moved."""
        for held, expected in self._held:
            now = _content(held)
            if len(now) != len(expected):
                return False
            for old, new in zip(expected, now, strict=True):
                if new is not old and not _numbers_moved(old, new):
                    return False
        return True


def _content(held: list[object] | dict[object, object]) -> list[object]:
    return [*held, *held.values()] if isinstance(held, dict) else list(held)
