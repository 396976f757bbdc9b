"""What a bound program relies on, checked at each call.

Made by capture; the one place where "is this program still the right one?" is answered. Each check
is a comparison of plain Python lists made by C-level iterators, since it runs before every step.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import fx

from ._torch import TensorMatch
from .errors import GradPresent
from .program import TensorMeta

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


class Guards:
    """Structure, identities, flags and attributes of one Step, and its plain numbers' values."""

    def __init__(self, step: Any, reads: Sequence[tuple[str, Any, str, Any]]) -> None:
        modules = list(step.modules.values())
        self.reads = tuple(reads)
        self._attributes = _Attributes(self.reads)
        self._children = _Members([step.roots, *(m._modules for m in modules)])
        self._tensors = _Members([held for m in modules for held in (m._parameters, m._buffers)])
        self._hooks = _Members([getattr(m, name) for m in modules for name in _HOOKS])
        self._patched = _Patched(modules)
        state = [v for v in self._tensors.expected if v is not None]
        state = list({id(tensor): tensor for tensor in state}.values())
        self._metadata = TensorMatch(state)
        self._trainable = [tensor for tensor in state if tensor.is_leaf]
        self.optimizers = [_OptimizerGuard(opt) for opt in step.optimizers]
        self._training = bool(step.optimizers)
        self._statics = step.statics

    def broken(self) -> str:
        """Why the program no longer fits, in words; empty when it does."""
        if not self._attributes.hold():
            return f"{self._attributes.which()} changed"
        if not self._children.hold():
            return "a sub-module was added, removed or replaced"
        if not self._tensors.hold():
            return "a parameter or buffer was added, removed or replaced"
        if not self._hooks.hold() or not self._patched.hold():
            return "a hook or a patched forward changed"
        if not self._metadata.holds():
            return "shape, strides, dtype, device or requires_grad of a parameter or buffer changed"
        for guard in self.optimizers:
            reason = guard.broken()
            if reason:
                return reason
        return ""

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
    return str(TensorMeta.of(value)) if isinstance(value, torch.Tensor) else repr(value)


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

    def __init__(self, holders: list[dict[str, Any]]) -> None:
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


class _Attributes:
    """Plain attributes that build read, compared by value; tensors among them by identity."""

    def __init__(self, reads: Sequence[tuple[str, Any, str, Any]]) -> None:
        by_owner: dict[int, tuple[str, dict[str, Any], list[str], list[Any]]] = {}
        self._tensors: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        for path, owner, name, value in reads:
            if isinstance(value, torch.Tensor):
                self._tensors.append((vars(owner), name, value))
                continue
            entry = by_owner.setdefault(id(owner), (path, vars(owner), [], []))
            entry[2].append(name)
            entry[3].append(value)
        self._owners = list(by_owner.values())
        self._dicts = [held for _, held, _, _ in self._owners]
        self._getters = [operator.itemgetter(*names) for _, _, names, _ in self._owners]
        self._expected = [
            values[0] if len(values) == 1 else tuple(values) for _, _, _, values in self._owners
        ]

    def hold(self) -> bool:
        try:
            now = [get(held) for get, held in zip(self._getters, self._dicts, strict=True)]
        except KeyError:
            return False
        if now != self._expected:
            return False
        return all(held.get(name) is value for held, name, value in self._tensors)

    def which(self) -> str:
        for path, held, names, values in self._owners:
            for name, value in zip(names, values, strict=True):
                if name not in held or held[name] != value:
                    return f"{path}.{name}"
        return "a tensor attribute of a module"


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
