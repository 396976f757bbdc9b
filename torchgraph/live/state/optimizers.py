"""Checks of the state of an optimizer: settings by group, slots by parameter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim import LBFGS, Optimizer

from .lbfgs import lbfgs_problems
from .slots import known_problems, own_problems
from .trials import Kind, Trial, kind_of, known_class, trial_of
from .values import is_finite, is_list, is_number, is_plain, short, unlike, unlike_own

Group = Mapping[str, Any]

_OF_A_GRAPH = {"lr_scale", "clip_grad_max_norm", "clip_grad_norm_type"}
_OF_SCHEDULERS = {"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum"}
"""Settings that no optimizer has by default; a norm may be infinite, a rate may not."""


def optimizer_problems(
    name: str, optimizer: Optimizer, saved: Group, *, strict: bool
) -> Iterator[str]:
    """Problems that keep a state of torch's form from being loaded."""
    groups: Any = saved.get("param_groups")
    states = saved.get("state")
    if not is_list(groups) or not isinstance(states, Mapping):
        yield f"{name}: is no optimizer state, which has a dict 'state' and a list 'param_groups'"
        return
    own = optimizer.param_groups
    sizes = [len(g["params"]) if _has_params(g) else short(g) for g in groups]
    wanted = [len(g["params"]) for g in own]
    if sizes != wanted:
        yield f"{name}: has param groups of {sizes} parameters, not {wanted}"
        return
    counted = 0
    parameters: list[torch.Tensor] = []
    usable = True
    for number, (left, right) in enumerate(zip(own, groups, strict=True)):
        group = f"{name}.param_groups.{number}"
        problems = list(_group_problems(group, optimizer, left, right, counted))
        yield from problems
        usable = usable and not problems
        counted += len(left["params"])
        parameters += left["params"]
    keys = {key for key in states if type(key) is int and 0 <= key < len(parameters)}
    free = known_class(optimizer) is None  # one of the user's may keep more than slots
    for key in states:
        if (key not in keys or type(key) is not int) and not (free and type(key) is str):
            yield f"{name}.state.{short(key)}: belongs to no parameter"
    if usable:  # else no step can be asked
        yield from _Slots(name, optimizer, groups, states, strict=strict).problems()


def own_form_problems(name: str, own: Group, saved: Group) -> Iterator[str]:
    """Problems that keep a state of a user's form from being loaded, by the current one."""
    yield from (f"{name}.{short(key)}: missing" for key in own if key not in saved)
    for key in saved.keys() & own.keys():
        yield from unlike_own(f"{name}.{key}", own[key], saved[key])


def has_torchs_form(state: Mapping[str, Any]) -> bool:
    """False for what a ``state_dict`` of the user's makes of it."""
    return isinstance(state.get("state"), Mapping) and is_list(state.get("param_groups"))


def _has_params(group: object) -> bool:
    return isinstance(group, Mapping) and is_list(group.get("params"))


def _group_problems(
    name: str, optimizer: Optimizer, own: Group, saved: Group, first: int
) -> Iterator[str]:
    defaults, free = optimizer.defaults, known_class(optimizer) is None
    numbers = list(range(first, first + len(own["params"])))
    if any(type(one) is not int for one in saved["params"]) or list(saved["params"]) != numbers:
        yield f"{name}.params: is not {first}, {first + 1} and so on, {len(numbers)} numbers"
    names = saved.get("param_names")
    if names is not None and not (
        is_list(names) and len(names) == len(numbers) and all(type(one) is str for one in names)
    ):
        yield f"{name}.param_names: is {short(names)}, not a name for each parameter"
    yield from (f"{name}: has {short(key)} as a key" for key in saved if type(key) is not str)
    for key, value in saved.items():
        if key in defaults:
            # A group may have another kind than the default, and what was loaded last may be wrong.
            problems = list(_unlike_default(f"{name}.{key}", defaults[key], value, free=free))
            kept = own.get(key, defaults[key])
            if problems and any(_unlike_default("", kept, value, free=free)):
                yield from problems
        elif wrong := _wrong_setting(key, value, free=free):
            yield f"{name}.{key}: is {short(value)}, {wrong}"
    for key in own:
        # A later torch adds flags, never a number that the arithmetic needs.
        needed = isinstance(defaults.get(key), (int, float, tuple, torch.Tensor))
        flag = isinstance(defaults.get(key), bool)
        if key not in saved and (key in _OF_A_GRAPH or (needed and not flag)):
            yield f"{name}.{key}: missing"


def _unlike_default(name: str, default: Any, value: Any, *, free: bool) -> Iterator[str]:
    """``free``: of a class of the user's, which may keep more than numbers there."""
    check = unlike_own if free and not is_number(default) else unlike
    yield from check(name, default, value)


def _wrong_setting(key: str, value: object, *, free: bool) -> str:
    """Why a setting that is none of the optimizer's own cannot have a value; empty where it can."""
    if key in _OF_SCHEDULERS and not is_finite(value):
        return "not a number that float32 holds"
    if key in _OF_A_GRAPH and not is_number(value) and not is_finite(value):
        return "not a number"
    plain = is_plain(value) or (free and isinstance(value, Mapping))
    return "" if plain or key in ("params", "param_names") else "which no setting is"


class _Slots:
    """The slots of all parameters of an optimizer, as a state has them."""

    def __init__(
        self,
        name: str,
        optimizer: Optimizer,
        groups: Sequence[Group],
        states: Mapping[int, Any],
        *,
        strict: bool,
    ) -> None:
        self._name = name
        self._optimizer = optimizer
        self._groups = groups
        self._states = states
        self._strict = strict
        self._somewhere = {
            key for slots in states.values() if isinstance(slots, Mapping) for key in slots
        }
        """The slots that a parameter has at all: another one comes with a later step."""

    def problems(self) -> Iterator[str]:
        """Slots that are missing, of another kind, or that make a step fail."""
        first = 0
        for number, own in enumerate(self._optimizer.param_groups):
            group, parameters = self._groups[number], own["params"]
            name = f"{self._name}.param_groups.{number}"
            cls = known_class(self._optimizer)
            if cls is LBFGS:
                path = f"{self._name}.state"
                yield from lbfgs_problems(path, parameters, group, self._states)
                return
            trial = trial_of(self._optimizer, own, map(kind_of, parameters))
            if trial is not None and cls is not None:
                try:
                    trial = Trial(cls, group, set(map(kind_of, parameters)))
                except Exception as error:
                    yield f"{name}: {cls.__name__} takes no step with it: {error}"[:300]
                    first += len(parameters)
                    continue
            found = list(self._of_group(first, parameters, trial))
            yield from found
            if trial is not None and not found:
                wrong = trial.problem_with(self._different(first, parameters))
                yield from (
                    [f"{name}: no step can be taken with its slots: {wrong}"] if wrong else []
                )
            first += len(parameters)

    def _of_group(
        self, first: int, parameters: Sequence[torch.Tensor], trial: Trial | None
    ) -> Iterator[str]:
        alike: dict[Kind, set[str]] = {}
        for index, parameter in enumerate(parameters, first):
            name = f"{self._name}.state.{index}"
            slots = self._states.get(index)
            own = self._optimizer.state.get(parameter, {})
            if slots is None or (isinstance(slots, Mapping) and not slots):
                if own and parameter.requires_grad and self._strict and any(self._states.values()):
                    yield f"{name}: missing (it has none where there was no gradient: strict=False)"
                continue
            if not isinstance(slots, Mapping):
                yield f"{name}: is {short(slots)}, not a dict"
                continue
            if trial is not None:
                expected = trial.slots(kind_of(parameter))
                yield from known_problems(name, parameter, slots, expected)
            else:
                names = alike.setdefault(kind_of(parameter), set(slots))
                if self._strict and names != set(slots):
                    yield f"{name}: has other slots than the parameters before it"
                yield from own_problems(name, slots, own, self._somewhere)

    def _different(
        self, first: int, parameters: Sequence[torch.Tensor]
    ) -> list[tuple[Kind, Group]]:
        """The slots of one parameter for each kind and for each set of numbers in them."""
        found: dict[object, tuple[Kind, Group]] = {}
        for index, parameter in enumerate(parameters, first):
            if slots := self._states.get(index):
                numbers = [(key, _number(value)) for key, value in slots.items()]
                kind = kind_of(parameter)
                found.setdefault((kind, *numbers), (kind, slots))
        return list(found.values())


def _number(value: Any) -> object:
    if isinstance(value, torch.Tensor):
        return value.item() if not value.ndim else value.dtype
    return value if is_number(value) else type(value)
