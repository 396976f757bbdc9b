"""History: what it takes to run the last steps again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch

from ..live.inputs import Call
from ..live.snapshot import Snapshot
from ..random_state import RandomState
from ..replay.replay import Replay
from .arguments import Arguments, Held
from .results import Result
from .settings import Settings

Numbers = list[dict[str, Any]]
"""What the param groups of an optimizer hold besides parameters."""


@dataclass
class Record:
    """Record of one step: its arguments, random state, settings and results."""

    step: int
    """Its number, from 1."""
    held: Held | None
    """None for arguments that nothing could hold on to."""
    random: RandomState
    numbers: list[Numbers]
    program: ref[Replay] | None
    runs: int
    """How often the program had run before."""
    settings: Settings | None
    """What modules were set to; None where the program is that of the step before."""
    gave: list[Result] | None = None
    """What it returned; None for a step that raised."""

    def ran_compiled(self, replay: Replay) -> bool:
        """True when the step ran in Inductor's code of ``replay``."""
        known = self.program is not None and self.program() is replay
        since = replay.inductor_since
        return known and since is not None and self.runs >= since


@dataclass
class Kept:
    """The full state before a step."""

    step: int
    snapshot: Snapshot
    random: RandomState


class History:
    """The last steps of a Graph.

    At most ``n + every`` steps and ``n / every + 2`` states are kept: from the oldest state on,
    each step that came.
    """

    def __init__(self) -> None:
        self.records: deque[Record] = deque()
        self.states: deque[Kept] = deque()
        self._arguments = Arguments()

    def note(
        self,
        limits: tuple[int, int],
        step: int,
        call: Call,
        replay: Replay | None,
        optimizers: Sequence[torch.optim.Optimizer],
        snapshot: Callable[[], Snapshot],
        settings: Callable[[], Settings],
    ) -> Record:
        """Before a step: keep what it starts from. ``limits``: how many steps, a state every."""
        n, every = limits
        while self.records and self.records[-1].step >= step:
            self.records.pop()  # a step that failed and comes once more, or a loaded state
        while self.states and self.states[-1].step >= step:
            self.states.pop()
        if self.records and self.records[-1].step != step - 1:
            self.forget()  # steps are missing in between
        if not self.states or step - self.states[-1].step >= every:
            self.states.append(Kept(step, snapshot(), RandomState()))
        self._drop(step - n)
        held = None if call.unbound is not None else self._arguments.held(call)
        program, runs = (None, 0) if replay is None else (ref(replay), replay.runs)
        numbers = [list(map(_numbers, optimizer.param_groups)) for optimizer in optimizers]
        moved = None if self._goes_on(replay) else settings()
        record = Record(step, held, RandomState(), numbers, program, runs, moved)
        self.records.append(record)
        return record

    def _goes_on(self, replay: Replay | None) -> bool:
        """True where the guards of the program have found all that it reads set as before."""
        last = self.records[-1].program if self.records else None
        return replay is not None and last is not None and last() is replay

    def forget(self) -> None:
        """Remove all records and states."""
        self.records.clear()
        self.states.clear()
        self._arguments = Arguments()

    @property
    def nbytes(self) -> int:
        """Bytes of all copies, without containers."""
        held = [record.held.call.tensors for record in self.records if record.held is not None]
        copies = {id(tensor): tensor.nbytes for tensors in held for tensor in tensors}
        return sum(copies.values()) + sum(state.snapshot.nbytes for state in self.states)

    def _drop(self, oldest: int) -> None:
        """Keep what it takes to come to the step ``oldest`` and those after it."""
        while len(self.states) > 1 and self.states[1].step <= oldest:
            self.states.popleft()
        while self.records and self.records[0].step < self.states[0].step:
            self.records.popleft()


def _numbers(group: dict[str, Any]) -> dict[str, Any]:
    return {key: _plain(value) for key, value in group.items() if key != "params"}


def _plain(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def put_numbers_back(optimizers: Sequence[torch.optim.Optimizer], numbers: list[Numbers]) -> None:
    """Let param groups hold what they held; tensors are written where they are."""
    for optimizer, groups in zip(optimizers, numbers, strict=False):
        for group, known in zip(optimizer.param_groups, groups, strict=False):
            for key, value in known.items():
                now = group.get(key)
                if isinstance(value, torch.Tensor) and isinstance(now, torch.Tensor):
                    now.detach().copy_(value)
                else:
                    group[key] = value


def unwritten(replays: Sequence[Replay]) -> set[int]:
    """The ids of parameters and buffers that all of these programs read and none writes."""
    found: set[int] = set()
    written: set[int] = set()
    for replay in replays:
        names = replay.captured.program.signature.written
        for leaf in replay.leaves:
            if leaf.fqn in names:
                written.add(id(leaf.value))
            elif leaf.in_module and not leaf.value.requires_grad:
                found.add(id(leaf.value))
    return found - written
