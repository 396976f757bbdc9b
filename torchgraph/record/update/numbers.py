"""The Python numbers of a step: they move while an optimizer's own step runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ...ir.names import number_of
from ...live.places import assign
from ...live.step import Leaf, Step
from ..ops.recorder import Recorder
from ..tape import number
from ..tape.acted import Acted
from ..tape.tape import Ref
from .leaked import Leaked


class Numbers:
    """The numbers of one step, which move in their places while optimizers step, there alone."""

    def __init__(self, step: Step, recorder: Recorder) -> None:
        self._step = step
        self.values: list[Any] = []
        """By leaf: a tensor, or a number that moves."""
        self.index: list[int] = []
        """By leaf, its value on the tape."""
        for leaf in step.leaves:
            if isinstance(leaf.value, torch.Tensor):
                self.index.append(recorder.memory.entered(leaf.value))
                self.values.append(leaf.value)
            else:
                self.index.append(recorder.tape.add(None))
                self.values.append(number.make(leaf.value, Ref(self.index[-1]), recorder))
        self._now = list(self.values)
        """By leaf: the number as it is at this point of the step; plain where Python set it."""
        self._changed: dict[int, object] = {}
        self.holders: dict[int, object] = {}
        """By identity, the containers in which numbers of optimizers lie that move just now."""
        self.acted = Acted()
        self.leaked = Leaked()

    @property
    def changed(self) -> list[tuple[Leaf, object]]:
        """Those that the step changed, with what they are now: a `Ref`, or a constant."""
        return [(self._step.leaves[position], now) for position, now in self._changed.items()]

    @contextmanager
    def in_place(self, optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[None]:
        """Where these optimizers keep their numbers, put those that move."""
        with self.leaked.watched(), self._put(optimizers):
            yield

    @contextmanager
    def _put(self, optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[None]:
        places = list(self._places(optimizers))
        nested = [(leaf.root, leaf.path[0]) for _, leaf in places if len(leaf.path) > 1]
        containers = [(root, key, root[key]) for root, key in nested]
        for position, leaf in places:
            self._meet(position, leaf)
            assign(leaf.root, leaf.path, _another(self._now[position]))
        self.holders.update((id(held), held) for held in _holders(optimizers))
        try:
            yield
        finally:
            self.holders.clear()
            for position, leaf in places:
                self._take_back(position, leaf)
            for root, key, before in containers:
                if _same(root.get(key), before):
                    root[key] = before
            for optimizer in optimizers:
                _sweep(optimizer)

    def accept(self, optimizer: torch.optim.Optimizer) -> None:
        """A scheduler has moved numbers of ``optimizer``, and does so after each run."""
        for position, leaf in self._places([optimizer]):
            self._now[position] = leaf.read()

    def finish(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """The step is over: what else Python has set is written down."""
        for position, leaf in self._places(optimizers):
            self._meet(position, leaf)

    def _places(self, optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[tuple[int, Leaf]]:
        known = enumerate(self._step.optimizers)
        wanted = {n for n, own in known if any(own is one for one in optimizers)}
        for position, leaf in enumerate(self._step.leaves):
            if isinstance(leaf.value, torch.Tensor) or number_of(leaf.fqn) not in wanted:
                continue
            if _is_there(leaf):
                yield position, leaf

    def _meet(self, position: int, leaf: Leaf) -> None:
        """Python may have set a number between two steps: then it is that constant."""
        live = leaf.read()
        if repr(number.bare(self._now[position])) != repr(live):
            self._now[position] = self._changed[position] = live

    def _take_back(self, position: int, leaf: Leaf) -> None:
        if not _is_there(leaf):
            return  # the next recording sees another structure
        now, before = leaf.read(), self._now[position]
        node = number.node_of(now)
        if node is not None and node is not number.node_of(before):
            self._now[position], self._changed[position] = number.kept(node), node.ref
        plain = node is None and isinstance(now, (int, float))
        if plain and type(now) is type(leaf.value):
            self._now[position] = self._changed[position] = now
        if node is not None:
            assign(leaf.root, leaf.path, node.value)


def _is_there(leaf: Leaf) -> bool:
    try:
        leaf.read()
    except (KeyError, IndexError, TypeError):
        return False
    return True


def _same(now: object, before: Any) -> bool:
    if isinstance(now, (list, tuple)):
        alike = type(now) is type(before) and len(now) == len(before)
        return alike and all(map(_same, now, before))
    if isinstance(now, dict):
        alike = isinstance(before, dict) and list(now) == list(before)
        return alike and all(map(_same, now.values(), before.values()))
    return now is before or (isinstance(now, (int, float)) and repr(now) == repr(before))


def _holders(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[object]:
    """The states and param groups of optimizers, and the containers in them."""
    pending: list[Any] = [held for one in optimizers for held in (one.state, one.param_groups)]
    while pending:
        holder = pending.pop()
        yield holder
        items = dict.values(holder) if isinstance(holder, dict) else holder
        pending += [item for item in items if isinstance(item, (dict, list, tuple))]


def _another(value: object) -> object:
    """An object that is in its place alone: outlives it the step, it is somewhere else, too."""
    node = number.node_of(value)
    return value if node is None else number.again(node)


def _sweep(optimizer: torch.optim.Optimizer) -> None:
    """New numbers of param groups and state are plain ones again."""
    pending: list[Any] = [*optimizer.param_groups, *optimizer.state.values()]
    while pending:
        holder = pending.pop()
        for key, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
            if key == "params":
                continue
            if _holds_number(value) and not isinstance(holder, tuple):
                holder[key] = number.bare(value)
            elif isinstance(value, (dict, list, tuple)):
                pending.append(value)


def _holds_number(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_number, value))
    if type(value) is dict:
        return any(map(_holds_number, value.values()))
    return number.node_of(value) is not None
