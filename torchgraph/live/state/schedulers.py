"""Checks of the state of a learning-rate scheduler: of its values, and by a step with it."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from ..._torch.optimizers import (
    SCHEDULER_COUNTS,
    SCHEDULER_ENTRIES,
    has_custom_scale,
    schedulers_in,
)
from .values import entries, independent, is_finite, is_list, is_number, short, unlike, unlike_own

_MAY_BE_INFINITE = {"best", "mode_worse"}


def scheduler_problems(
    name: str, scheduler: LRScheduler, saved: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Problems that keep a state from being loaded.

    Args:
        groups: the param groups that the optimizer will have.
    """
    problems = list(_entries(name, scheduler, scheduler.state_dict(), saved))
    yield from problems
    if not problems and (found := _problem_of_a_step(scheduler, saved, groups)):
        yield f"{name}: no step can be taken with it: {found}"


def _entries(
    name: str, holder: object, own: Mapping[str, Any], saved: Mapping[Any, Any]
) -> Iterator[str]:
    """``holder``: the scheduler, or a function that it calls; what a user's has may come and go."""
    known = None if _is_of_torch(type(holder)) else _known_entries(type(holder))
    yield from (f"{name}: has {short(key)} as a key" for key in saved if type(key) is not str)
    for key, value in own.items():
        # Flags that begin with a line are torch's own, and another version has others.
        flag = key.startswith("_") and (value is None or isinstance(value, bool))
        if key not in saved and not flag and (known is None or key in known):
            yield f"{name}.{key}: missing"
    for key, value in saved.items():
        if known is not None and key not in known:
            yield from unlike_own(f"{name}.{key}", own.get(key), value)
        elif key in own:
            yield from _entry(f"{name}.{key}", holder, key, own[key], value)
        elif type(key) is str and not key.startswith("_"):
            yield f"{name}.{key}: unexpected"


def _is_of_torch(cls: type) -> bool:
    return cls.__module__ == lr_scheduler.__name__


def _known_entries(cls: type) -> set[str]:
    """The attributes that a user's class has from torch's: counts, rates, arguments."""
    bases = filter(_is_of_torch, cls.__mro__)
    given = (key for base in bases for key in inspect.signature(base).parameters)
    return {*SCHEDULER_ENTRIES, *given}


def _entry(name: str, holder: object, key: str, own: Any, saved: Any) -> Iterator[str]:
    if key in SCHEDULER_COUNTS:
        if type(saved) is not int or saved < -1:
            yield f"{name}: is {short(saved)}, not a count of steps"
    elif key in _MAY_BE_INFINITE:
        if not is_number(saved) and not isinstance(saved, torch.Tensor):
            yield f"{name}: is {short(saved)}, not a number"
    elif isinstance(own, Counter):
        plain = isinstance(saved, Mapping)
        if not plain or not all(type(item) is int for pair in saved.items() for item in pair):
            yield f"{name}: is {short(saved)}, not a dict of counts"
    elif is_list(own) and is_list(saved) and any(isinstance(item, Mapping) for item in own):
        yield from _members(name, holder, own, saved)
    else:
        yield from unlike(name, own, saved)


def _members(name: str, holder: object, own: Sequence[Any], saved: Sequence[Any]) -> Iterator[str]:
    """The states of the schedulers in a chain, or of the functions of a LambdaLR."""
    if len(own) != len(saved):
        yield f"{name}: has {entries(len(saved))}, not {len(own)}"
        return
    held = schedulers_in(holder) or own  # functions are the user's, and so is all they have
    for number, (one, left, right) in enumerate(zip(held, own, saved, strict=True)):
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            yield from _entries(f"{name}.{number}", one, left, right)
        elif isinstance(left, Mapping):
            yield f"{name}.{number}: is {short(right)}, not a dict"


def as_own(own: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a state, in which a Counter that became a dict in a file is one again."""
    return {
        key: Counter(value) if isinstance(own.get(key), Counter) else independent(value)
        for key, value in saved.items()
    }


def _problem_of_a_step(
    scheduler: LRScheduler, saved: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]
) -> str:
    """Why the next step of a copy fails, where the copy as it is now has one; empty otherwise.

    Schedulers with functions of the user's are not tried: these would notice.
    """
    if not all(map(_is_torchs, [scheduler, *inside(scheduler)])):
        return ""
    if _stepped(scheduler, None, scheduler.optimizer.param_groups):
        return ""  # this one has no next step anyway
    return _stepped(scheduler, saved, groups)


def _stepped(
    scheduler: LRScheduler, saved: Mapping[str, Any] | None, groups: Sequence[Mapping[str, Any]]
) -> str:
    parameters = [{"params": [torch.zeros(1)]} for _ in groups]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for own, group in zip(optimizer.param_groups, groups, strict=True):
        own.update({k: independent(v) for k, v in group.items() if k != "params"})
    try:
        trial = copy.deepcopy(scheduler, {id(scheduler.optimizer): optimizer})
    except Exception:  # it holds what has no copy: then it is not tried
        return ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if saved is not None:
                trial.load_state_dict(as_own(scheduler.state_dict(), saved))
            _step(trial)
        except Exception as error:
            return f"{type(error).__name__}: {error}"[:200]
    rates = (group["lr"] for group in optimizer.param_groups)
    wrong = [rate for rate in rates if not _is_rate(rate)]
    return f"the learning rate becomes {short(wrong[0])}" if wrong else ""


def _step(scheduler: LRScheduler) -> None:
    if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
        scheduler.step(1.0)
    elif isinstance(scheduler, lr_scheduler.OneCycleLR):
        scheduler.last_epoch -= 1  # at its end there is no next step: then it is good to look at
        scheduler.step()
    else:
        scheduler.step()
        scheduler.step()


def _is_rate(rate: object) -> bool:
    return isinstance(rate, torch.Tensor) or is_finite(rate)


def _is_torchs(scheduler: LRScheduler) -> bool:
    if isinstance(scheduler, (lr_scheduler.LambdaLR, lr_scheduler.MultiplicativeLR)):
        return False
    return _is_of_torch(type(scheduler)) and not has_custom_scale(scheduler)


def inside(scheduler: LRScheduler) -> Iterable[LRScheduler]:
    """The schedulers that a chain or a sequence steps, at any depth."""
    for inner in schedulers_in(scheduler):
        yield inner
        yield from inside(inner)
