"""LoadedGraph: the programs of a Graph over weights and state of their own."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from ..calls.schedulers import Schedulers
from ..errors import CallNotSaved, GraphBroken, StateDictMismatch, StepFailed
from ..ir.names import TRAIN, scaler_key
from ..ir.program import Program
from ..library import ValueMoved
from ..live.inputs import Call, Inputs, key_below_autograd, leaves, sharing_of
from ..live.state import Progress
from ..live.state.training import calls_of, calls_problems, rng_problems
from ..live.state.values import independent, unlike
from ..live.state.whole import random_state, set_random_state
from ..live.step import Leaf
from ..replay.replay import Replay
from .parts import Parts, as_saved

_LISTED = 20


class LoadedGraph:
    """A Graph that `torchgraph.load` made from a directory: call it as the Graph was called.

    Every call is one step: it trains where the Graph did, on weights that are its own. Nothing is
    recorded here: a call that no saved program serves is an error. ``state_dict()`` fits the Graph
    that was saved, and its models.
    """

    def __init__(
        self, parts: Parts, inputs: Inputs, optimizers: Sequence[Optimizer], schedulers: Schedulers
    ) -> None:
        self.lock = threading.RLock()
        self._parts = parts
        self._inputs = inputs
        self._optimizers = list(optimizers)
        self._schedulers = schedulers
        self._state: dict[str, Any] = OrderedDict(parts.state)
        train = self._state[TRAIN]
        self._progress = Progress(train["step"])
        self._progress.calls.update(calls_of(train))
        self._broken = ""
        self._by_key: dict[object, list[Replay]] = {}
        for replay in parts.replays:
            assert replay.example is not None
            self._by_key.setdefault(key_below_autograd(replay.example), []).append(replay)

    # --- running ----------------------------------------------------------------------------------

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run one step, as the Graph that was saved does.

        Raises:
            CallNotSaved: no program that was saved serves it; nothing was changed.
            StepFailed: an op raised. GraphBroken: an earlier step failed half-way.
        """
        with self.lock:
            self._check_whole()
            call = self._inputs.bind(args, kwargs)
            return self._served(call)

    def _served(self, call: Call) -> Any:
        candidates = self._by_key.get(key_below_autograd(call))
        if not candidates:
            raise CallNotSaved(
                f"No saved program of {self.name} is for such a call. They take:\n  "
                f"{self._wanted()}\nand this call has:\n  {_described(call)}"
            )
        why = ""
        for replay in candidates:
            reason = replay.why_not()
            if not reason:
                try:
                    return self._replayed(replay, call)
                except ValueMoved as moved:
                    reason = str(moved)
            why = why or reason
        raise CallNotSaved(f"Each program of {self.name} that was saved is for other values: {why}")

    def _check_whole(self) -> None:
        if self._broken:
            raise GraphBroken(f"An earlier step of {self.name} failed half-way.")

    def _wanted(self) -> str:
        calls = (one.example for one in self._parts.replays)
        return "\n  ".join(dict.fromkeys(_described(one) for one in calls if one is not None))

    def _replayed(self, replay: Replay, call: Call) -> Any:
        self._schedulers.check_loss(replay.returns_loss)
        calls = self._progress.calls[replay.serves]
        with replay.turn(calls, self._parts.options), as_saved(self._parts.default_dtype):
            try:
                returned = replay.run(call)
            except BaseException as error:
                if isinstance(error, StepFailed) or not isinstance(error, Exception):
                    self._broken = replay.broken
                raise
            self._progress.count(replay.serves)
            self._schedulers.step(lambda: replay.loss, replay.stepped(self._optimizers))
        return returned

    # --- state ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state as ``Graph.state_dict()`` returns it, to load there: live tensors."""
        with self.lock:
            train = self._state[TRAIN]
            train.update(step=self._progress.step, calls=self._progress.entry)
            train["schedulers"] = [one.state_dict() for one in self._schedulers]
            train["rng"] = random_state()
            if train["scaler"] is not None:
                train["scaler"].update(self._scaler_state(train["scaler"]))
            found: dict[str, Any] = _with_new_containers(self._state)
            return found

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what ``state_dict()`` of this, or of the Graph, gave; all of it or nothing.

        The random state is set, too.

        Raises:
            StateDictMismatch: lists what is missing, unexpected, of a wrong shape or kind.
        """
        with self.lock:
            own = self.state_dict()
            problems = list(_problems(own, state_dict))
            if problems:
                more = len(problems) - _LISTED
                problems[_LISTED:] = [f"... and {more} more"] if more > 0 else []
                listed = "\n  ".join(problems)
                raise StateDictMismatch(f"The state does not fit {self.name}:\n  {listed}")
            given, before = independent(dict(state_dict)), independent(own)
            try:
                self._take(given)
            except BaseException:
                self._take(before)
                raise
            self._broken = ""
            self.restore_random_state()

    def _take(self, state: dict[str, Any]) -> None:
        train = state[TRAIN]
        for scheduler, saved in zip(self._schedulers, train["schedulers"], strict=True):
            scheduler.load_state_dict(dict(saved))  # a CyclicLR's takes an entry out
        own = self._state[TRAIN]
        for key in self._state.keys() - {TRAIN}:
            _copy_into(self._state[key], state[key])
        _copy_into(own["optimizers"], train["optimizers"])
        _copy_into(own["scaler"] or {}, train["scaler"])
        self._set_scaler(train["scaler"] or {})
        own["rng"] = train["rng"]
        self._progress = Progress(train["step"], Counter(calls_of(train)))
        self._schedulers.forget()

    def restore_random_state(self) -> None:
        """Let torch's generators go on where they were when the state was saved or loaded."""
        set_random_state(self._state[TRAIN]["rng"])

    def _leaves(self) -> list[Leaf]:
        found = {leaf.fqn: leaf for replay in self._parts.replays for leaf in replay.leaves}
        return list(found.values())

    def _scaler_leaves(self, state: Mapping[str, Any]) -> list[tuple[str, Leaf]]:
        """The states of a GradScaler, each with its key in the scaler's own state."""
        named = [(key, leaf) for leaf in self._leaves() if (key := scaler_key(leaf.fqn))]
        pairs = ((key if key in state else f"_{key}", leaf) for key, leaf in named)
        return [(key, leaf) for key, leaf in pairs if key in state]

    def _scaler_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        values = {key: leaf.read() for key, leaf in self._scaler_leaves(state)}
        return {k: v.item() if isinstance(v, torch.Tensor) else v for k, v in values.items()}

    def _set_scaler(self, state: Mapping[str, Any]) -> None:
        for key, leaf in self._scaler_leaves(state):
            value = leaf.read()
            if isinstance(value, torch.Tensor):
                value.fill_(state[key])
            else:
                leaf.root[leaf.path[-1]] = state[key]

    # --- looking in -------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the Graph that was saved."""
        return self._parts.name

    @property
    def training(self) -> bool:
        """True where a call updates weights."""
        return self._parts.options.training

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs, after all passes; not to be edited."""
        return tuple(replay.program for replay in self._parts.replays)

    @property
    def last_lr(self) -> list[float]:
        """The learning rate of each param group of each optimizer, as the next call will use it."""
        return [float(group["lr"]) for opt in self._optimizers for group in opt.param_groups]

    def parts(self) -> Parts:
        """The parts to save, as they are now; GraphBroken after half a step."""
        self._check_whole()
        return Parts(
            self._parts.name,
            self._parts.class_name,
            self._parts.parameters,
            self._parts.options,
            self._parts.replays,
            self.state_dict(),
            self._parts.places,
            self._parts.schedules,
            self._parts.default_dtype,
        )

    def __repr__(self) -> str:
        lines = [f"LoadedGraph({self.name}, training={self.training}, steps={self._progress.step})"]
        return "\n".join([*lines, f"  takes {self._wanted()}"])


def _described(call: Call) -> str:
    """The tensors of a call, with all that tells it from another; plain values, too."""
    found = []
    for path, leaf in leaves(call.args, call.kwargs):
        if isinstance(leaf, torch.Tensor):
            dtype = str(leaf.dtype).removeprefix("torch.")
            strides = "" if leaf.is_contiguous() else f" with strides {list(leaf.stride())}"
            found.append(f"{path}: {dtype}{list(leaf.shape)}{strides}")
        else:
            found.append(f"{path}={leaf!r:.60}")
    found += [f"{other} in the memory of {first}" for first, other in sharing_of(call)]
    return ", ".join(found) or "nothing"


def _problems(own: Mapping[str, Any], given: object) -> list[str]:
    if not isinstance(given, Mapping):
        way = ": give its state_dict()" if hasattr(given, "state_dict") else ""
        return [f"it is a {type(given).__name__}, no dict{way}"]
    found = [f"{key}: missing" for key in own if key not in given]
    found += [f"{key!s:.80}: unexpected" for key in given if key not in own]
    for key in own:
        if key in given and key != TRAIN:
            found += _unlike(key, own[key], given[key])
    if TRAIN in given and isinstance(given[TRAIN], Mapping):
        mine, its = own[TRAIN], given[TRAIN]
        found += [f"{TRAIN}.{key}: missing" for key in mine if key not in its]
        for key in ("optimizers", "schedulers", "scaler", "step"):
            if key in its:
                found += _unlike(f"{TRAIN}.{key}", mine[key], its[key])
        found += calls_problems(calls_of(its))
        found += rng_problems(its.get("rng"))
    elif TRAIN in given:
        found.append(f"{TRAIN}: is no dict")
    return found


def _unlike(path: str, own: Any, given: Any) -> list[str]:
    """The places where ``given`` has other keys, or other kinds of values, than ``own``."""
    if isinstance(own, list) and isinstance(given, (list, tuple)) and len(own) == len(given):
        own, given = dict(enumerate(own)), dict(enumerate(given))
    if not isinstance(own, dict) or not isinstance(given, Mapping):
        return list(unlike(path, own, given)) or _otherwise(path, own, given)
    found = [f"{path}.{key}: missing" for key in own if key not in given]
    found += [f"{path}.{key!s:.80}: unexpected" for key in given if key not in own]
    for key in own.keys() & given.keys():
        found += _unlike(f"{path}.{key}", own[key], given[key])
    return found


def _otherwise(path: str, own: Any, given: Any) -> list[str]:
    """The difference of two flags for which the programs are specialised, in words."""
    if (own is None or isinstance(own, (bool, str))) and own != given and ".optimizers." in path:
        return [f"{path}: is {given!r:.40}, and the programs are for {own!r:.40}"]
    return []


def _with_new_containers(value: Any) -> Any:
    if isinstance(value, dict):
        copied = value.copy()  # an OrderedDict keeps the versions of its modules
        for key, item in value.items():
            copied[key] = _with_new_containers(item)
        return copied
    if isinstance(value, list):
        return [_with_new_containers(item) for item in value]
    return value


def _copy_into(own: Any, given: Any) -> None:
    """Let a dict or list hold the values of its like: tensors are written, numbers replaced."""
    for key, value in list(own.items() if isinstance(own, dict) else enumerate(own)):
        if isinstance(value, torch.Tensor):
            with torch.no_grad():
                value.copy_(given[key])
        elif isinstance(value, (dict, list)):
            _copy_into(value, given[key])
        else:
            own[key] = given[key]
