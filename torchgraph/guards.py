"""What a bound program relies on, checked at each call.

Made by capture; the one place where "is this program still the right one?" is answered. Each check
is a comparison of plain Python lists made by C-level iterators, since it runs before every step.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import fx
from torch.utils.hooks import RemovableHandle

from ._torch import TensorHooks, TensorMatch
from .errors import GradPresent
from .program import Role, TensorMeta

Read = tuple[str, Any, str, Any]
"""(path, object, attribute, value); the object is a class where the class holds the attribute."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_grad = torch.Tensor.grad.__get__  # type: ignore[union-attr]  # a C property


@dataclass(frozen=True)
class ValueGuard:
    """Branches that Python took on the optimizer's numbers: a program of their conditions."""

    gm: fx.GraphModule
    fqns: tuple[str, ...]
    """Its inputs."""
    expected: tuple[Any, ...]

    def holds(self, values: Sequence[Any]) -> bool:
        """True when each condition has the value that it had at capture."""
        with torch.no_grad():
            return tuple(self.gm(*values)) == self.expected


class Modules:
    """Structure of some modules: children, tensors, hooks and patched forwards, by identity."""

    def __init__(
        self,
        modules: Sequence[Any],
        more: Sequence[torch.Tensor] = (),
        roots: dict[str, Any] | None = None,
        hooked: Sequence[torch.Tensor] = (),
    ) -> None:
        self._children = _Members([roots or {}, *(m._modules for m in modules)])
        self._tensors = _Members([held for m in modules for held in (m._parameters, m._buffers)])
        self._hooks = _Hooks([getattr(m, name) for m in modules for name in _HOOKS], hooked)
        self._patched = _Patched(modules)
        state = [v for v in (*self._tensors.expected, *more) if v is not None]
        self.tensors = list({id(tensor): tensor for tensor in state}.values())
        self._metadata = TensorMatch(self.tensors)

    def broken(self) -> str:
        """What changed, in words; empty when nothing did."""
        if not self._children.hold():
            return "a sub-module was added, removed or replaced"
        if not self._tensors.hold():
            return "a parameter or buffer was added, removed or replaced"
        if not self._hooks.hold() or not self._patched.hold():
            return "a hook or a patched forward changed"
        if not self._metadata.holds():
            return "shape, strides, dtype, device or requires_grad of a parameter or buffer changed"
        return ""


class Guards:
    """Structure, identities, flags and attributes of one Step, and the values of its numbers.

    ``outside`` is what `build` used although no attribute of the Graph holds it.
    """

    def __init__(self, step: Any, reads: Sequence[Read], outside: Modules) -> None:
        self.reads = tuple(reads)
        self.outside = outside
        self._attributes = _Attributes(self.reads)
        parameters = [leaf.value for _, leaf in step.tensors() if leaf.role is Role.PARAMETER]
        hooked = parameters if step.optimizers else []
        self._modules = Modules(list(step.modules.values()), roots=step.roots, hooked=hooked)
        self._trainable = [tensor for tensor in self._modules.tensors if tensor.is_leaf]
        self.optimizers = [_OptimizerGuard(opt) for opt in step.optimizers]
        self._training = bool(step.optimizers)
        self._statics = step.statics

    def broken(self) -> str:
        """Why the program no longer fits, in words; empty when it does."""
        if not self._attributes.hold():
            return f"{self._attributes.which()} changed"
        reason = self._modules.broken()
        if reason:
            return reason
        for guard in self.optimizers:
            reason = guard.broken()
            if reason:
                return reason
        return self.outside.broken()

    def check_gradients(self, name_of: Callable[[torch.Tensor], str]) -> None:
        """Raise GradPresent when an eager backward left a gradient behind. Training graphs only."""
        if self._training:
            check_gradients(self._trainable, name_of)

    def describe(self) -> list[tuple[str, str]]:
        """(what, value) of every guarded attribute and optimizer setting, for ``report()``."""
        attributes = [(f"{path}.{name}", value) for path, _, name, value in self.reads]
        settings = [(static.fqn, static.value) for static in self._statics]
        return [(name, _described(value)) for name, value in (*attributes, *settings)]


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return str(TensorMeta.of(value))
    if callable(value):  # its repr may hold an address
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    return repr(value)


def check_gradients(
    parameters: Sequence[torch.Tensor], name_of: Callable[[torch.Tensor], str]
) -> None:
    """Raise GradPresent when one of ``parameters`` has a gradient."""
    grads = list(map(_grad, parameters))
    if grads.count(None) != len(grads):
        left = next(p for p, g in zip(parameters, grads, strict=True) if g is not None)
        raise GradPresent(
            f"{name_of(left)} has a .grad from an eager backward; eager would add to it, the Graph "
            "starts from none."
        )


class _Members:
    """The values of many dicts, by identity: what they hold, nothing added, nothing gone."""

    def __init__(self, holders: list[dict[Any, Any]]) -> None:
        self._full = [held for held in holders if held]
        self._empty = [held for held in holders if not held]
        self.expected = list(chain.from_iterable(map(dict.values, self._full)))

    def hold(self, excuse: Callable[[Any, Any], bool] | None = None) -> bool:
        """True when nothing moved; ``excuse(old, new)`` may accept a value that did."""
        if any(self._empty):
            return False
        now = list(chain.from_iterable(map(dict.values, self._full)))
        if len(now) != len(self.expected):
            return False
        if all(map(operator.is_, now, self.expected)):
            return True
        return excuse is not None and all(
            new is old or excuse(old, new) for old, new in zip(self.expected, now, strict=True)
        )


def _numbers_moved(old: Any, new: Any) -> bool:
    return type(old) is type(new) and type(new) in (int, float)


class _Hooks:
    """Hooks of modules and gradients. Each comes with a RemovableHandle, and torch numbers those.

    Hooks that are there are looked at in each check, places for others when new ones were made.
    """

    def __init__(self, holders: list[dict[Any, Any]], tensors: Sequence[torch.Tensor]) -> None:
        self._present = _Members([held for held in holders if held])
        self._absent = [held for held in holders if not held]
        self._of_tensors = TensorHooks(tensors)
        self._handles = RemovableHandle.next_id

    def hold(self) -> bool:
        if RemovableHandle.next_id != self._handles:
            if any(self._absent) or not self._of_tensors.none_came():
                return False
            self._handles = RemovableHandle.next_id
        return self._present.hold() and self._of_tensors.hold()


class _Absent:
    """What a read finds where the object itself holds no such attribute."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()


def same_attribute(attributes: Mapping[str, Any], name: str, value: Any) -> bool:
    """True when an attribute is as it was read: by value and type if plain, else by identity."""
    now = attributes.get(name, ABSENT)
    return now is value or (_by_value(value) and _same(value, now))


def _by_value(value: Any) -> bool:
    return not (isinstance(value, (torch.Tensor, enum.Enum)) or callable(value))


def _same(old: Any, new: Any) -> bool:
    # 2 and 2.0 are equal, and so are 0.0 and -0.0, but they are not the same program.
    if type(old) is not type(new):
        return False
    if isinstance(old, (float, complex)):
        return repr(old) == repr(new)
    if isinstance(old, tuple):
        return len(old) == len(new) and all(map(_same, old, new))
    return bool(old == new)


class _Attributes:
    """Attributes that build read. Almost always they are the very objects that they were."""

    def __init__(self, reads: Sequence[Read]) -> None:
        self._reads = reads
        by_owner: dict[int, tuple[Mapping[str, Any], list[str]]] = {}
        self._absent: list[tuple[Mapping[str, Any], str]] = []
        expected: dict[int, list[Any]] = {}
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


class _Patched:
    """Instance attributes come and go (a patched ``forward``): their number, own ``forward``s."""

    def __init__(self, modules: Sequence[Any]) -> None:
        self._dicts = [vars(module) for module in modules]
        self._sizes = list(map(len, self._dicts))
        self._own = [(held, held["forward"]) for held in self._dicts if "forward" in held]

    def hold(self) -> bool:
        if list(map(len, self._dicts)) != self._sizes:
            return False
        return all(held.get("forward") is forward for held, forward in self._own)


class _OptimizerGuard:
    """Param groups and slots of one optimizer. Floats may move; everything else must stay."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._groups = list(optimizer.param_groups)
        self._parameters = [list(group["params"]) for group in self._groups]
        self._sizes = list(map(len, self._groups))
        self._state = optimizer.state
        self._owners = list(optimizer.state)
        self._slots = list(optimizer.state.values())
        self._members = _Members(self._slots)
        getters = [tuple(key for key in group if key != "params") for group in self._groups]
        self._getters = [operator.itemgetter(*keys) if keys else None for keys in getters]
        self._last = [self._values(i) for i in range(len(self._groups))]
        self._frozen = [_frozen(values) for values in self._last]

    def broken(self) -> str:
        optimizer = self.optimizer
        if optimizer.state is not self._state or len(optimizer.state) != len(self._owners):
            return "the state of an optimizer was replaced or grew"
        slots = list(optimizer.state.values())
        if not all(map(operator.is_, slots, self._slots)) or not self._members.hold(_numbers_moved):
            return "a slot of an optimizer was replaced"
        groups = optimizer.param_groups
        if len(groups) != len(self._groups) or not all(map(operator.is_, groups, self._groups)):
            return "the param groups of an optimizer were replaced"
        for i, group in enumerate(groups):
            params, expected = group["params"], self._parameters[i]
            if len(params) != len(expected) or not all(map(operator.is_, params, expected)):
                return "the parameters of a param group changed"
            if not self._group_holds(i, group):
                return f"a setting of param group {i} changed"
        return ""

    def _group_holds(self, i: int, group: dict[str, Any]) -> bool:
        if len(group) != self._sizes[i]:
            return False
        try:
            values = self._values(i)
        except KeyError:
            return False
        last = self._last[i]
        if all(map(operator.is_, values, last)):
            return True
        if _frozen(values) != self._frozen[i]:
            return False
        self._last[i] = values
        return True

    def _values(self, i: int) -> tuple[Any, ...]:
        get = self._getters[i]
        found = () if get is None else get(self._groups[i])
        return found if isinstance(found, tuple) and self._sizes[i] > 2 else (found,)


def _frozen(values: Any) -> Any:
    """A param group's settings with the floats, which may move, replaced by their type."""
    if isinstance(values, (tuple, list)):
        return (type(values), tuple(map(_frozen, values)))
    if type(values) is float:
        return float
    if isinstance(values, torch.Tensor):
        return (TensorMeta.of(values), id(values))
    if isinstance(values, dict):
        return tuple((key, _frozen(value)) for key, value in values.items())
    return (type(values), values)
