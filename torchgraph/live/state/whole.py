"""``graph.state_dict()`` and its way back: everything that a run needs to go on to the last bit.

The format is plain: nested dicts of tensors, numbers, strings and None, which
``torch.load(weights_only=True)`` reads.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ...distributed.parallel import has_ranks
from ...distributed.words.process import get_rank
from ...errors import StateDictMismatch
from ...ir.names import TRAIN
from .held import Held
from .in_parts import in_parts
from .modules import memory_of, module_problems, safe_to_load
from .schedulers import as_own
from .training import calls_of, train_problems
from .undo import undoing
from .values import independent, short

_LISTED = 30
"""The number of problems that a message lists."""


@dataclass
class Progress:
    """The counts of a Graph's calls."""

    step: int = 0
    """Calls in all."""
    calls: Counter[str] = field(default_factory=Counter)
    """Calls by their arguments, in words; from a certain one on, Inductor's code runs."""

    @property
    def entry(self) -> str:
        """``calls`` as one entry of a state, for torch.distributed.checkpoint asks by name."""
        return json.dumps(self.calls)

    def count(self, arguments: str) -> None:
        """One more call."""
        self.step += 1
        self.calls[arguments] += 1


def collect(
    held: Held,
    progress: Progress,
) -> OrderedDict[str, object]:
    """One entry per module, and ``"_train"``: step, optimizers, schedulers, scaler, RNG."""
    state: OrderedDict[str, object] = OrderedDict(
        (name, module.state_dict()) for name, module in held.modules.items()
    )
    state[TRAIN] = {
        "step": progress.step,
        "calls": progress.entry,
        "optimizers": [optimizer.state_dict() for optimizer in held.optimizers],
        "schedulers": [scheduler.state_dict() for scheduler in held.schedulers],
        "scaler": None if held.scaler is None else held.scaler.state_dict(),
        "rng": random_state(),
    }
    return state


def random_state() -> dict[str, object]:
    """The states of torch's generators."""
    found: dict[str, object] = {"cpu": torch.get_rng_state()}
    if has_ranks():
        found["rank"] = get_rank()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["cuda"] = torch.cuda.get_rng_state_all()
    return found


def set_random_state(state: Mapping[str, Any]) -> None:
    """Set torch's generators to the states that `random_state` gave."""
    torch.set_rng_state(state["cpu"])
    if state.get("cuda") and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def restore(
    state: Mapping[str, Any],
    held: Held,
    *,
    strict: bool,
) -> Progress:
    """Load a state, all of it or nothing, and return its progress.

    Everything is checked before anything is written. What fails all the same, in a module's or an
    optimizer's own code, is undone. For that the parameters and buffers exist twice meanwhile; the
    slots of optimizers do not, where loading replaces them, as it does in torch's.

    Raises:
        StateDictMismatch: names every missing, unexpected or wrongly shaped entry, or what failed.
    """
    try:
        state = in_parts(state, held, TRAIN)
        problems = list(_problems(state, held, strict=strict))
    except Exception as error:  # the state may hold objects of any class, with code of their own
        raise StateDictMismatch(f"The state cannot be read: {_said(error)}.") from error
    if problems:
        raise StateDictMismatch(
            "The state does not fit the Graph:\n  " + "\n  ".join(_few(problems))
        )
    doing = ["the state"]
    try:
        writes = _writes(state, held, strict=strict)
        with undoing(held):
            for what, write in writes:
                doing.append(what)
                write()
    except Exception as error:
        raise StateDictMismatch(
            f"{doing[-1]} could not be loaded: {_said(error)}. Everything is as it was before."
        ) from error
    train = state.get(TRAIN)
    return Progress(train["step"], Counter(calls_of(train))) if train else Progress()


def _few(problems: list[str]) -> list[str]:
    more = len(problems) - _LISTED
    return problems if more <= 0 else [*problems[:_LISTED], f"… {more} more"]


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).rstrip('.')}"


def _writes(
    state: Mapping[str, Any],
    held: Held,
    *,
    strict: bool,
) -> list[tuple[str, Callable[[], object]]]:
    """The writes to make, from copies: the state may share memory with their targets."""
    written = memory_of(held.modules.values())
    writes: list[tuple[str, Callable[[], object]]] = []
    for name, module in held.modules.items():
        if name in state:
            own = safe_to_load(module, state[name], written)
            writes.append((name, partial(module.load_state_dict, own, strict=strict)))
    train = state.get(TRAIN)
    if train is None:
        return writes
    # A loaded optimizer shares no memory with the checkpoint: the next step writes its slots.
    pairs = zip(held.optimizers, train["optimizers"], strict=False)
    for number, (optimizer, saved) in enumerate(pairs):
        what = f"{TRAIN}.optimizers.{number}"
        writes.append((what, partial(optimizer.load_state_dict, independent(saved))))
    stepped = zip(held.schedulers, train["schedulers"], strict=False)
    for number, (scheduler, saved) in enumerate(stepped):
        what = f"{TRAIN}.schedulers.{number}"
        fresh = as_own(scheduler.state_dict(), saved)
        writes.append((what, partial(scheduler.load_state_dict, fresh)))
    if held.scaler is not None and train.get("scaler"):
        fresh = independent(train["scaler"])
        writes.append((f"{TRAIN}.scaler", partial(held.scaler.load_state_dict, fresh)))
    rng = independent(train["rng"])
    if has_ranks() and rng.get("rank", get_rank()) != get_rank():
        writes.append((f"{TRAIN}.rng", partial(torch.manual_seed, _seed_of(rng["cpu"]))))
        return writes
    writes.append((f"{TRAIN}.rng", partial(set_random_state, rng)))
    return writes


def _seed_of(state: torch.Tensor) -> int:
    """A seed for this rank, made of the random state of another: no two ranks draw the same."""
    text = bytes(state.tolist()) + str(get_rank()).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")


def _problems(
    state: object,
    held: Held,
    *,
    strict: bool,
) -> Iterator[str]:
    if not isinstance(state, Mapping):
        yield f"it is {short(state)}, not a dict"
        return
    if state and not {*held.modules, TRAIN} & {key for key in state if isinstance(key, str)}:
        names = ", ".join(map(repr, held.modules))
        yield f"it has no name of the Graph's ({names}): is it the state of one of its modules?"
        return
    wanted = [*held.modules, *([TRAIN] if held.optimizers else [])]
    if strict:
        yield from (f"{name}: missing" for name in wanted if name not in state)
        known = {*held.modules, TRAIN}
        yield from (f"{_key(key)}: unexpected" for key in state if key not in known)
    for name, module in held.modules.items():
        if name in state:
            yield from module_problems(name, module, state[name], strict=strict)
    if TRAIN in state:
        yield from train_problems(state[TRAIN], held, strict=strict)


def _key(key: object) -> str:
    return key[:80] if isinstance(key, str) else short(key)
