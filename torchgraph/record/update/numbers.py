"""The Python numbers of a step, symbolic while an optimizer's own step runs."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from ...guards import ABSENT, same_value
from ...guards.aspects import elements, entries_in, item_of
from ...ir.names import is_number
from ...live.places import assign, containers, innermost, set_item, value_at, with_items
from ...live.step import Leaf, Step
from ...objects import is_a
from ..ops.recorder import Recorder
from ..tape import number
from ..tape.functions import following
from ..tape.scheduler_writes import SchedulerWrites
from ..tape.tape import Ref
from .leaked import Leaked


class Numbers:
    """The numbers of one step, which are symbolic in their places while optimizers step."""

    def __init__(self, step: Step, recorder: Recorder) -> None:
        self._step, self._recorder = step, recorder
        self.follow = bool(step.moving or step.reads_values)
        """True where the user's lines change numbers, or compute with values of tensors."""
        self.values: list[Any] = []
        """By leaf: a tensor, or a symbolic number."""
        self.index: list[int] = []
        """By leaf, its value on the tape."""
        for leaf in step.leaves:
            if is_a(leaf.value, torch.Tensor):
                self.index.append(recorder.memory.entered(leaf.value))
                self.values.append(leaf.value)
            else:
                self.index.append(recorder.tape.add(None))
                self.values.append(number.make(leaf.value, Ref(self.index[-1]), recorder))
        self._now = list(self.values)
        """By leaf: the present number; plain where Python set it."""
        self._changed: dict[int, object] = {}
        self._open: Collection[int] = frozenset()
        """The leaves whose numbers are symbolic for the user's lines as well, just now."""
        self.holders: dict[int, object] = {}
        """By identity, the containers with symbolic numbers of optimizers, just now."""
        self.scheduler_writes = SchedulerWrites()
        self.leaked = Leaked()

    @property
    def changed(self) -> list[tuple[Leaf, object]]:
        """The leaves that the step changed, with a `Ref` or a constant."""
        return [(self._step.leaves[position], now) for position, now in self._changed.items()]

    @property
    def places(self) -> dict[tuple[int, object], Leaf]:
        """The user's numbers that are symbolic: their leaves, by place."""
        found = {}
        for position in self._step.moving:
            leaf = self._step.leaves[position]
            found[leaf.place] = leaf
        return found

    @property
    def written(self) -> set[tuple[int, object]]:
        """The places of optimizers' numbers that the program assigns."""
        changed = [self._step.leaves[position] for position in self._changed if self.follow]
        own = [leaf for leaf in changed if not is_number(leaf.fqn)]
        return {place for leaf in own for place in (leaf.place, (id(leaf.root), leaf.path[0]))}

    @contextmanager
    def in_users_places(self) -> Iterator[None]:
        """Put symbolic numbers into the user's places in the block."""
        if not self.follow:
            yield
            return
        places = [(n, self._step.leaves[n]) for n in sorted(self._step.moving)]
        self._open = self._step.moving
        self._recorder.follows = True
        with self.leaked.followed(), following():
            for position, leaf in places:
                assign(leaf.root, leaf.path, _another(self._now[position]))
            try:
                yield
            finally:
                self._recorder.follows, self._open = False, frozenset()
                for position, leaf in places:
                    self._take_back(position, leaf)
                self.finish(self._step.optimizers)
                _sweep(containers(self._step.optimizers))

    @contextmanager
    def in_place(self, optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[None]:
        """Put symbolic numbers into the places of these optimizers in the block."""
        within = self._recorder.follows or self.holders  # its numbers are the outer step's, too
        with nullcontext() if within else self.leaked.watched(), self._put(optimizers):
            yield

    @contextmanager
    def _put(self, optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[None]:
        around = dict(self.holders)  # of an optimizer whose step calls that of another
        places = [one for one in self._places(optimizers) if one[1].place[0] not in around]
        homes = [innermost(leaf.root, leaf.path) for _, leaf in places]
        held = [(*at, item_of(*at)) for at in homes]
        tuples = [one for one in held if is_a(one[-1], tuple)]
        for position, leaf in places:
            self._meet(position, leaf)
            assign(leaf.root, leaf.path, _another(self._now[position]))
        self.holders.update((id(held), held) for held in containers(optimizers))
        try:
            yield
        finally:
            self.holders.clear()
            self.holders.update(around)
            for position, leaf in places:
                self._take_back(position, leaf)
            for holder, key, before in tuples:
                if same_value(number.bare(value_at(holder, (key,))), number.bare(before)):
                    set_item(holder, key, before)
            if not self._recorder.follows:
                _sweep(containers(optimizers), around)
                _sweep((holder for holder, _ in homes), around)  # also those that were replaced

    def accept(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the numbers that a scheduler set, as it does after each run."""
        for position, leaf in self._places([optimizer]):
            self._now[position] = leaf.read()

    def finish(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Record the numbers that Python has set by the end of the step."""
        for position, leaf in self._places(optimizers):
            self._meet(position, leaf)

    def _places(self, optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[tuple[int, Leaf]]:
        """The leaves of numbers in these optimizers, under any optimizer's name."""
        wanted = set(map(id, containers(optimizers)))
        for position, leaf in enumerate(self._step.leaves):
            if is_a(leaf.value, torch.Tensor) or leaf.place[0] not in wanted:
                continue
            if leaf.now(ABSENT) is not ABSENT:
                yield position, leaf

    def _meet(self, position: int, leaf: Leaf) -> None:
        """Record a number that Python set between two steps, as a constant."""
        live = leaf.read()
        node, known = number.node_of(live), number.node_of(self._now[position])
        if node is not None:
            if node is not known:
                self._now[position], self._changed[position] = number.kept(node), node.ref
            return
        replaced = position in self._open and known is not None
        if replaced or not same_value(number.bare(self._now[position]), live):
            self._now[position] = self._changed[position] = live

    def _take_back(self, position: int, leaf: Leaf) -> None:
        now, before = leaf.now(ABSENT), self._now[position]
        if now is ABSENT:
            return  # the next recording sees another structure
        node = number.node_of(now)
        if node is not None and node is not number.node_of(before):
            self._now[position], self._changed[position] = number.kept(node), node.ref
        plain = node is None and isinstance(now, (int, float))
        if plain and type(now) is type(leaf.value):
            self._now[position] = self._changed[position] = now
        if position in self._open:
            assign(leaf.root, leaf.path, _another(self._now[position]))
        elif node is not None:
            assign(leaf.root, leaf.path, node.value)


def _another(value: object) -> object:
    """A new object for the number, held by its place alone, to detect leaks."""
    node = number.node_of(value)
    return value if node is None else number.again(node)


def _sweep(holders: Iterable[Any], around: Collection[int] = ()) -> None:
    """Replace symbolic numbers in containers by plain ones, but in those of ``around``."""
    for holder in [one for one in holders if id(one) not in around]:
        if not is_a(holder, (dict, list)):
            continue
        for key, value in entries_in(holder):
            plain = _plain(value)
            if plain is not value:
                set_item(holder, key, plain)


def _plain(value: Any) -> Any:
    """The number for a symbolic one; a tuple with plain ones; anything else as it is."""
    node = number.node_of(value)
    if node is not None:
        return node.value
    if not is_a(value, tuple):
        return value
    held = elements(value)
    items = list(map(_plain, held))
    same = all(map(operator.is_, items, held))
    return value if same else with_items(value, items)
