"""Checks of the entry ``"_train"`` of a state: counts, random state, scaler and its parts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ..._torch.optimizers import SCALER_COUNT
from ...amp import Scaler
from ...ir.names import TRAIN
from .held import Held
from .optimizers import has_torchs_form, optimizer_problems, own_form_problems
from .schedulers import scheduler_problems
from .values import entries, is_count, is_finite, is_list, short

_KEYS = ("step", "optimizers", "schedulers", "rng")
_COUNTS = {"growth_interval", SCALER_COUNT}


def train_problems(train: object, held: Held, *, strict: bool) -> Iterator[str]:
    """Problems that keep the training state from being loaded."""
    if not isinstance(train, Mapping):
        yield f"{TRAIN}: is {short(train)}, not a dict"
        return
    yield from (f"{TRAIN}.{key}: missing" for key in _KEYS if key not in train)
    if "step" in train and not is_count(train["step"]):
        yield f"{TRAIN}.step: is {short(train['step'])}, not a count"
    yield from calls_problems(calls_of(train))
    yield from rng_problems(train["rng"]) if "rng" in train else ()
    yield from scaler_problems(train.get("scaler"), held.scaler, strict=strict)
    # A Graph that only evaluates takes the state of one that trains.
    unused = not held.optimizers
    groups: dict[int, Any] = {}
    for number, (optimizer, saved) in enumerate(
        _pairs(train, "optimizers", held.optimizers, unused=unused)
    ):
        if isinstance(saved, str):
            yield saved
            continue
        name = f"{TRAIN}.optimizers.{number}"
        own = optimizer.state_dict()
        if not has_torchs_form(own):
            yield from own_form_problems(name, own, saved)
            continue
        problems = list(optimizer_problems(name, optimizer, saved, strict=strict))
        yield from problems
        if not problems:
            groups[id(optimizer)] = saved["param_groups"]
    unused = not held.schedulers and (unused or not strict)
    for number, (scheduler, saved) in enumerate(
        _pairs(train, "schedulers", held.schedulers, unused=unused)
    ):
        if isinstance(saved, str):
            yield saved
            continue
        given = groups.get(id(scheduler.optimizer), scheduler.optimizer.param_groups)
        yield from scheduler_problems(f"{TRAIN}.schedulers.{number}", scheduler, saved, given)


def _pairs(
    train: Mapping[str, Any], key: str, own: Sequence[Any], *, unused: bool
) -> Iterator[tuple[Any, Any]]:
    """Each of ``own`` with its state; where they do not match, with a problem as text.

    ``unused``: the state may have any number of entries, which nobody reads.
    """
    if key not in train:
        return
    saved = train[key]
    if not is_list(saved):
        yield None, f"{TRAIN}.{key}: is {short(saved)}, not a list"
    elif len(saved) != len(own):
        if not unused:
            yield None, f"{TRAIN}.{key}: has {entries(len(saved))}, not {len(own)}"
    else:
        for number, (one, state) in enumerate(zip(own, saved, strict=True)):
            fits = isinstance(state, Mapping)
            yield one, state if fits else f"{TRAIN}.{key}.{number}: is {short(state)}, not a dict"


def calls_of(train: Mapping[str, Any]) -> Any:
    """Counts of calls by kind: a dict, unless something else was saved."""
    found = train.get("calls", {})
    if type(found) is not str:
        return found  # a dict, before there were several ranks
    try:
        return json.loads(found)
    except ValueError:
        return found


def calls_problems(calls: object) -> Iterator[str]:
    """Problems of counts of calls."""
    if not isinstance(calls, Mapping):
        yield f"{TRAIN}.calls: is {short(calls)}, not a dict"
        return
    for key, count in calls.items():
        if type(key) is not str or not is_count(count):
            yield f"{TRAIN}.calls: has {short(key)}: {short(count)}, not a count of calls"


def rng_problems(rng: object) -> Iterator[str]:
    """Problems that keep the random state from being set."""
    if not isinstance(rng, Mapping) or "cpu" not in rng:
        yield f"{TRAIN}.rng: is {short(rng)}, without a state of torch's generator"
        return
    if not _is_accepted(rng["cpu"], torch.Generator()):
        yield f"{TRAIN}.rng.cpu: is no state of torch's generator"
    states = rng.get("cuda", [])
    if not is_list(states):
        yield f"{TRAIN}.rng.cuda: is {short(states)}, not a list"
        return
    here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if here and len(states) > here:
        yield f"{TRAIN}.rng.cuda: has states of {len(states)} GPUs, and here are {here}"
    for number, state in enumerate(states):
        device = f"cuda:{number}" if number < here else ""
        if not (_is_accepted(state, torch.Generator(device)) if device else _is_bytes(state)):
            yield f"{TRAIN}.rng.cuda.{number}: is no state of a GPU's generator"


def _is_bytes(state: object) -> bool:
    if not isinstance(state, torch.Tensor) or state.layout is not torch.strided:
        return False
    return state.dtype is torch.uint8 and state.ndim == 1 and state.is_cpu


def _is_accepted(state: object, throwaway: torch.Generator) -> bool:
    """Test a state on a throwaway generator: only a generator can validate one."""
    if not _is_bytes(state):
        return False
    try:
        throwaway.set_state(state.detach().clone())  # type: ignore[attr-defined]  # a tensor
    except (RuntimeError, TypeError, ValueError):
        return False
    return True


def scaler_problems(saved: object, scaler: Scaler | None, *, strict: bool) -> Iterator[str]:
    """Problems that keep the state of a grad scaler from being loaded."""
    name = f"{TRAIN}.scaler"
    if saved is not None and not isinstance(saved, Mapping):
        yield f"{name}: is {short(saved)}, not a dict"
    elif scaler is None:
        if saved and strict:
            yield f"{name}: unexpected, the Graph has no grad scaler"
    elif not saved:
        if strict:
            yield f"{name}: missing"
    else:
        own = scaler.state_dict()
        yield from (f"{name}.{key}: missing" for key in own if key not in saved)
        yield from (f"{name}.{short(key)}: unexpected" for key in saved if key not in own)
        for key in own:
            if key in saved and not _is_setting(key, saved[key]):
                yield f"{name}.{key}: is {short(saved[key])}, no such number of a scaler"


def _is_setting(key: str, value: Any) -> bool:
    if key in _COUNTS:
        return is_count(value) and value < 2**31 and (value > 0 or key == SCALER_COUNT)
    return not isinstance(value, torch.Tensor) and is_finite(value) and value > 0
