"""Trials of optimizers: steps on a few numbers, which show the slots that a class makes."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from ..._torch.distributed.held import local
from ..._torch.optimizers import loads_plainly, step_without_hooks
from ...collection import afresh
from ...optimizers.rules import KNOWN_MODULES, allocates_slots, refusal
from .values import independent

Group = Mapping[str, Any]


class Kind(NamedTuple):
    """The properties of a parameter that a first step may depend on."""

    ndim: int
    dtype: torch.dtype
    device: torch.device


class Slot(NamedTuple):
    """A slot after a first step: an example of it, and its sizes: full (True) or 1 (False)."""

    like: Any
    full: tuple[bool, ...] | None
    """None where the shape follows from something else than the parameter's."""

    def shape_for(self, parameter: torch.Tensor) -> tuple[int, ...] | None:
        """The shape of the slot of a parameter; None where any will do."""
        if self.full is None:
            return None
        sizes = zip(self.full, parameter.shape, strict=False)  # no sizes: a number in a tensor
        return tuple(size if full else 1 for full, size in sizes)


def kind_of(parameter: torch.Tensor) -> Kind:
    """The kind of a parameter."""
    return Kind(parameter.ndim, parameter.dtype, parameter.device)


class Trial:
    """An optimizer of the same class over stand-ins of a few numbers, one for each kind.

    Raises what the class raises for settings that it does not take, or a step that it cannot take.
    """

    def __init__(self, cls: type[Optimizer], group: Group, kinds: Iterable[Kind]) -> None:
        self._cls, self._group = cls, group
        with _quietly():
            self._stand_ins = {kind: _stand_in(kind) for kind in kinds}
            self._optimizer = _made(cls, group, list(self._stand_ins.values()))
            step_without_hooks(self._optimizer)

    def slots(self, kind: Kind) -> dict[str, Slot]:
        """The slots that a first step makes for a parameter of that kind."""
        stand_in = self._stand_ins[kind]
        state = self._optimizer.state.get(stand_in, {})
        return {key: _slot(stand_in, value) for key, value in state.items()}

    def problem_with(self, states: Sequence[tuple[Kind, Group]]) -> str:
        """Why a step fails after these slots were loaded; empty where it does not."""
        if not states:
            return ""
        slots = {number: self._few(*state) for number, state in enumerate(states)}
        settings = {**_settings(self._group), "params": list(slots)}
        with _quietly():
            optimizer = _made(self._cls, self._group, [_stand_in(kind) for kind, _ in states])
            try:
                optimizer.load_state_dict({"state": slots, "param_groups": [settings]})
                step_without_hooks(optimizer)
            except Exception as error:
                return f"{type(error).__name__}: {error}"[:200]
        return ""

    def _few(self, kind: Kind, slots: Group) -> dict[str, Any]:
        """Slots of a parameter as those of its stand-in; what is one number stays that number."""
        made = self._optimizer.state[self._stand_ins[kind]]
        return {
            key: torch.ones_like(made[key], dtype=slots[key].dtype)
            if isinstance(slots[key], torch.Tensor) and slots[key].ndim
            else independent(_alone(slots[key]))
            for key in made
        }


def _alone(value: Any) -> Any:
    """One number of a DTensor, which every rank has, as a plain tensor."""
    return local(value) if isinstance(value, torch.Tensor) else value


def trial_of(optimizer: Optimizer, group: Group, kinds: Iterable[Kind]) -> Trial | None:
    """A trial with the optimizer's current settings; None where none can be made."""
    cls = known_class(optimizer)
    kinds = set(kinds)
    if cls is None or any(kind.device.type == "meta" for kind in kinds):
        return None
    try:
        return Trial(cls, group, kinds)
    except Exception:  # it needs a closure, or sparse gradients, or whatever else
        return None


def known_class(optimizer: Optimizer) -> type[Optimizer] | None:
    """The class of torch's or of ours that takes the steps; None where it is the user's."""
    if not allocates_slots(optimizer) or not loads_plainly(optimizer):
        return None
    bases = (base for base in type(optimizer).__mro__ if base not in (Optimizer, object))
    return next((base for base in bases if f"{base.__module__}.".startswith(KNOWN_MODULES)), None)


def _made(cls: type[Optimizer], group: Group, parameters: list[torch.Tensor]) -> Optimizer:
    settings = _settings(group)
    taken = inspect.signature(cls.__init__).parameters
    kwargs = {key: value for key, value in settings.items() if key in taken}
    optimizer = cls(parameters, **kwargs)
    numbers = list(range(len(parameters)))
    optimizer.load_state_dict({"state": {}, "param_groups": [{**settings, "params": numbers}]})
    if (refused := refusal(optimizer, given=True)) is not None:
        raise afresh(refused)
    return optimizer


def _settings(group: Group) -> dict[str, Any]:
    left_out = ("params", "param_names")
    return {key: independent(value) for key, value in group.items() if key not in left_out}


def _stand_in(kind: Kind) -> torch.Tensor:
    shape = range(2, 2 + kind.ndim)  # no size twice: each dimension of a slot is known by its size
    found = torch.ones(list(shape), dtype=kind.dtype, device=kind.device)
    found.grad = torch.ones_like(found)
    return found


def _slot(stand_in: torch.Tensor, value: Any) -> Slot:
    if not isinstance(value, torch.Tensor):
        return Slot(value, None)
    if not value.ndim:
        return Slot(value, ())
    sizes = list(zip(value.shape, stand_in.shape, strict=False))
    if value.ndim != stand_in.ndim or any(size not in (1, full) for size, full in sizes):
        return Slot(value, None)
    return Slot(value, tuple(size == full for size, full in sizes))


@contextmanager
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
        warnings.simplefilter("ignore")
        yield
