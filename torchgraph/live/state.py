"""``graph.state_dict()`` and its way back: everything that a run needs to go on to the last bit.

The format is plain: nested dicts of tensors, numbers, strings and None, which
``torch.load(weights_only=True)`` reads.
"""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..amp import Scaler
from ..errors import StateDictMismatch
from ..ir.names import TRAIN


@dataclass
class Progress:
    """How far a Graph has come."""

    step: int = 0
    """Calls in all."""
    calls: Counter[str] = field(default_factory=Counter)
    """Calls by their arguments, in words; from a certain one on, Inductor's code runs."""

    def count(self, arguments: str) -> None:
        """One more call."""
        self.step += 1
        self.calls[arguments] += 1


def collect(
    modules: Mapping[str, nn.Module],
    optimizers: Sequence[Optimizer],
    schedulers: Sequence[LRScheduler],
    scaler: Scaler | None,
    progress: Progress,
) -> OrderedDict[str, object]:
    """One entry per module, and ``"_train"``: step, optimizers, schedulers, scaler, RNG."""
    state: OrderedDict[str, object] = OrderedDict(
        (name, module.state_dict()) for name, module in modules.items()
    )
    rng: dict[str, object] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        rng["cuda"] = torch.cuda.get_rng_state_all()
    state[TRAIN] = {
        "step": progress.step,
        "calls": dict(progress.calls),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "schedulers": [scheduler.state_dict() for scheduler in schedulers],
        "scaler": None if scaler is None else scaler.state_dict(),
        "rng": rng,
    }
    return state


def restore(
    state: Mapping[str, Any],
    modules: Mapping[str, nn.Module],
    optimizers: Sequence[Optimizer],
    schedulers: Sequence[LRScheduler],
    scaler: Scaler | None,
    *,
    strict: bool,
) -> Progress:
    """Load a state and return its progress. Everything is checked before anything is written.

    Raises:
        StateDictMismatch: names every missing, unexpected or wrongly shaped entry.
    """
    problems = list(_problems(state, modules, optimizers, schedulers, scaler, strict=strict))
    if problems:
        raise StateDictMismatch("The state does not fit the Graph:\n  " + "\n  ".join(problems))
    for name, module in modules.items():
        if name in state:
            module.load_state_dict(state[name], strict=strict)
    train = state.get(TRAIN)
    if train is None:
        return Progress()
    # A loaded optimizer shares no memory with the checkpoint: the next step writes its slots.
    for optimizer, saved in zip(optimizers, train["optimizers"], strict=False):
        optimizer.load_state_dict(copy.deepcopy(saved))
    for scheduler, saved in zip(schedulers, train["schedulers"], strict=False):
        scheduler.load_state_dict(copy.deepcopy(saved))
    if scaler is not None and train.get("scaler"):
        scaler.load_state_dict(train["scaler"])
    torch.set_rng_state(train["rng"]["cpu"])
    if "cuda" in train["rng"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(train["rng"]["cuda"])
    return Progress(train["step"], Counter(train.get("calls", {})))


def _problems(
    state: object,
    modules: Mapping[str, nn.Module],
    optimizers: Sequence[Optimizer],
    schedulers: Sequence[LRScheduler],
    scaler: Scaler | None,
    *,
    strict: bool,
) -> Iterator[str]:
    if not isinstance(state, Mapping):
        yield f"it is a {type(state).__name__}, not a dict"
        return
    wanted = set(modules) | ({TRAIN} if optimizers else set())
    if strict:
        yield from (f"{name}: missing" for name in sorted(wanted - set(state)))
        yield from (f"{name}: unexpected" for name in sorted(set(state) - set(modules) - {TRAIN}))
    for name, module in modules.items():
        if name in state:
            yield from _module_problems(name, module, state[name], strict=strict)
    if TRAIN in state:
        yield from _train_problems(state[TRAIN], optimizers, schedulers)
        yield from _scaler_problems(state[TRAIN], scaler, strict=strict)


def _module_problems(name: str, module: nn.Module, saved: object, *, strict: bool) -> Iterator[str]:
    if not isinstance(saved, Mapping):
        yield f"{name}: is a {type(saved).__name__}, not a dict"
        return
    own = module.state_dict()
    if strict:
        yield from (f"{name}.{key}: missing" for key in own if key not in saved)
        yield from (f"{name}.{key}: unexpected" for key in saved if key not in own)
    for key, value in own.items():
        new = saved.get(key)
        if isinstance(value, torch.Tensor) and key in saved:
            if not isinstance(new, torch.Tensor):
                yield f"{name}.{key}: is a {type(new).__name__}, not a tensor"
            elif new.shape != value.shape:
                yield f"{name}.{key}: has shape {tuple(new.shape)}, not {tuple(value.shape)}"


def _train_problems(
    train: object, optimizers: Sequence[Optimizer], schedulers: Sequence[LRScheduler]
) -> Iterator[str]:
    keys = ("step", "optimizers", "schedulers", "rng")
    if not isinstance(train, Mapping) or any(key not in train for key in keys):
        yield f"{TRAIN}: needs the entries {', '.join(keys)}"
        return
    if type(train["step"]) is not int:
        yield f"{TRAIN}.step: is {train['step']!r}, not a number"
    calls = train.get("calls", {})
    if not isinstance(calls, Mapping) or any(type(count) is not int for count in calls.values()):
        yield f"{TRAIN}.calls: is {calls!r}, not a dict of numbers"
    yield from _rng_problems(train["rng"])
    for what, own, saved in (
        ("optimizers", optimizers, train["optimizers"]),
        ("schedulers", schedulers, train["schedulers"]),
    ):
        if own and len(own) != len(saved):
            yield f"{TRAIN}.{what}: has {len(saved)} entries, not {len(own)}"
    for number, (optimizer, saved) in enumerate(zip(optimizers, train["optimizers"], strict=False)):
        yield from _optimizer_problems(f"{TRAIN}.optimizers.{number}", optimizer, saved)
    for number, (scheduler, saved) in enumerate(zip(schedulers, train["schedulers"], strict=False)):
        if not isinstance(saved, Mapping) or _public(saved) != _public(scheduler.state_dict()):
            yield f"{TRAIN}.schedulers.{number}: is no state of a {type(scheduler).__name__}"


def _scaler_problems(train: object, scaler: Scaler | None, *, strict: bool) -> Iterator[str]:
    saved = train.get("scaler") if isinstance(train, Mapping) else None
    if scaler is None:
        if saved and strict:
            yield f"{TRAIN}.scaler: unexpected, the Graph has no grad scaler"
        return
    own = scaler.state_dict()
    if not saved:
        if strict:
            yield f"{TRAIN}.scaler: missing"
    elif not isinstance(saved, Mapping) or set(saved) != set(own):
        yield f"{TRAIN}.scaler: is no state of a {type(scaler).__name__}"
    elif not all(isinstance(value, (int, float)) for value in saved.values()):
        yield f"{TRAIN}.scaler: holds something other than numbers"


def _public(state: Mapping[str, object]) -> set[str]:
    return {key for key in state if not key.startswith("_")}


def _rng_problems(rng: object) -> Iterator[str]:
    own = torch.get_rng_state()
    saved = rng.get("cpu") if isinstance(rng, Mapping) else None
    if not isinstance(saved, torch.Tensor) or (saved.dtype, saved.shape) != (own.dtype, own.shape):
        yield f"{TRAIN}.rng.cpu: is no state of torch's generator"


def _optimizer_problems(name: str, optimizer: Optimizer, saved: Any) -> Iterator[str]:
    groups = saved.get("param_groups") if isinstance(saved, Mapping) else None
    if groups is None or "state" not in saved:
        yield f"{name}: is no optimizer state"
        return
    own = optimizer.param_groups
    sizes, wanted = [len(g["params"]) for g in groups], [len(g["params"]) for g in own]
    if sizes != wanted:
        yield f"{name}: has param groups of {sizes} parameters, not {wanted}"
        return
    # A later torch adds flags, never a number that the arithmetic needs.
    needed = [key for key, value in optimizer.defaults.items() if isinstance(value, (float, tuple))]
    for number, group in enumerate(groups):
        missing = [key for key in needed if key not in group]
        if missing:
            yield f"{name}.param_groups.{number}: has no {', '.join(missing)}"
    parameters = [p for group in own for p in group["params"]]
    indices = [index for group in groups for index in group["params"]]
    for unknown in sorted({key for key in saved["state"] if isinstance(key, int)} - set(indices)):
        yield f"{name}.state.{unknown}: belongs to no parameter"
    for index, parameter in zip(indices, parameters, strict=True):
        slots = saved["state"].get(index) or {}
        yield from _slot_problems(f"{name}.state.{index}", optimizer, parameter, slots)


def _slot_problems(
    name: str, optimizer: Optimizer, parameter: torch.Tensor, slots: Any
) -> Iterator[str]:
    for key, value in slots.items():
        if not isinstance(value, torch.Tensor):
            continue
        known = optimizer.state.get(parameter, {}).get(key)
        if isinstance(known, torch.Tensor):
            if value.shape != known.shape:
                yield f"{name}.{key}: has shape {tuple(value.shape)}, not {tuple(known.shape)}"
        elif type(optimizer).__module__.startswith("torch.optim") and value.ndim:
            # Slots of torch are shaped like the parameter, or reduced over some of its dimensions.
            reduced = value.ndim == parameter.ndim and all(
                size in (1, full) for size, full in zip(value.shape, parameter.shape, strict=True)
            )
            if not reduced:
                yield (
                    f"{name}.{key}: has shape {tuple(value.shape)}, which does not fit a parameter "
                    f"of {tuple(parameter.shape)}"
                )
