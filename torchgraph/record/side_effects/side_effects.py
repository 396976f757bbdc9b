"""What a step does to Python's objects besides its program, when it takes its own update.

A Graph that updates by itself starts each call without gradients and leaves none. A function that
calls ``optimizer.step()`` finds in ``.grad``, in closures and attributes what was left there, and
leaves there what eager leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch

from ..._torch.distributed.held import local
from ...guards import Starts, starts_apart_of_like
from ...ir.program import TensorMeta
from ...library.expect import ValueMoved
from ...live.inputs import Call
from ...live.step import Leaf
from .entry_state import Bounded, Filled, HaveGradients, Keyed, Pair, Shares, ValueAtEntry
from .trees import Filling, constant, freeze

_LESSONS = 4
"""So often a compiled check is made anew for tensors that are not like those before."""


class Destination(Protocol):
    """Where a value is kept between calls."""

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal places."""

    def write(self, value: object, call: Call) -> None:
        """Put ``value`` there."""


@dataclass(frozen=True)
class GradientOf(Keyed):
    """``.grad`` of a tensor, as a place, and as the container of a leaf."""

    parameter: torch.Tensor

    def __getitem__(self, key: str) -> object:
        return self.parameter.grad

    def write(self, value: Any, call: Call) -> None:
        """Put ``value`` there."""
        self.parameter.grad = value


@dataclass(frozen=True)
class OnArgument(Keyed):
    """An attribute of an argument of the call: its gradient, a flag, what the user has put there.

    ``position`` is that among the tensors.
    """

    position: int
    name: str

    def write(self, value: object, call: Call) -> None:
        """Put ``value`` there."""
        setattr(call.tensors[self.position], self.name, value)


@dataclass(frozen=True)
class Flags(Keyed):
    """A flag of each of several objects: whether modules train, or tensors require a gradient."""

    objects: tuple[object, ...]
    name: str

    def write(self, value: Any, call: Call) -> None:
        """Let each have its own."""
        for one, flag in zip(self.objects, value, strict=True):
            if getattr(one, self.name) is not flag:
                setattr(one, self.name, flag)


@dataclass(frozen=True)
class Assigned:
    """A place that the step gives another value."""

    place: Destination
    tree: object
    """What lies there then, as `Filling.filled` takes it; None for None."""


@dataclass(frozen=True)
class Action:
    """A call that moves nothing but Python's objects, such as ``scheduler.step()``."""

    call: Callable[..., object]
    args: tuple[object, ...]
    kwargs: dict[str, object]
    """With an `OutputSlot` for each tensor."""


@dataclass(frozen=True)
class SideEffects:
    """What one recorded step does to Python's objects."""

    actions: tuple[Action, ...] = ()
    assigned: tuple[Assigned, ...] = ()
    entry: tuple[HaveGradients | ValueAtEntry | Bounded | Filled, ...] = ()
    """What was in ``.grad``, and in places that the step gives something else."""
    read: tuple[tuple[Leaf, TensorMeta], ...] = ()
    """What the program takes from its place as an argument, after those of the call."""
    moved: frozenset[str] = frozenset()
    """Tensors of optimizers that actions write: a learning rate in a tensor."""
    stepped: tuple[torch.optim.Optimizer, ...] = ()
    """Optimizers that the step itself has stepped."""
    together: tuple[Pair | Shares, ...] = ()
    """Places that held one tensor, or lay in one memory, or did not, where that counts."""

    def plus(
        self, assigned: Sequence[Assigned], together: Sequence[Pair | Shares] = ()
    ) -> SideEffects:
        """With more places that the step gives another value, and more that hold one tensor."""
        more = (*self.assigned, *assigned), (*self.together, *together)
        return replace(self, assigned=more[0], together=more[1])

    def freeze(self, other: SideEffects) -> None:
        """Both do the same: what is one object in both was there before, and no call makes it."""
        for one, its in zip(self.assigned, other.assigned, strict=True):
            freeze(one.tree, its.tree)

    def key(self) -> tuple[object, ...]:
        """Equal for two steps that do the same."""
        actions = [(one.call, one.args, one.kwargs) for one in self.actions]
        assigned = [(one.place.key, one.tree) for one in self.assigned]
        entry = [one.key for one in self.entry]
        read = [(leaf.fqn, meta) for leaf, meta in self.read]
        together = [pair.key for pair in self.together]
        stepped = tuple(map(id, self.stepped))
        return actions, assigned, entry, read, together, self.moved, stepped

    def fits(self) -> bool:
        """True when gradients and tensors are there, and are not, as the step found them."""
        return all(one.fits() for one in self.entry)

    def found(self) -> dict[str, object]:
        """What lies now in the places that the program reads, by name."""
        return {leaf.fqn: leaf.now() for leaf, _ in self.read}

    def extended(self, call: Call, found: Mapping[str, object] | None = None) -> Call:
        """``call`` with what the program takes from places: ``found`` at its start, or now.

        Raises:
            ValueMoved: it is not like what the step met there.
        """
        pairs = self.together if found is None else ()
        if pairs and not all(pair.fits(call.tensors) for pair in pairs):
            raise ValueMoved("", "", other="one tensor is two now, or two are one")
        if not self.read:
            return call
        there = self._there() if found is None else [found.get(leaf.fqn) for leaf, _ in self.read]
        together = [*call.tensors, *there]
        if starts := self._apart.starts(together):
            return call._replace(tensors=together, memory=starts, disjoint=True)
        tensors = self._checked(there)
        starts_there = [local(tensor).untyped_storage().data_ptr() for tensor in tensors]
        memory = [*call.memory, *starts_there]
        if len(set(memory)) != len(memory) and not self._are_apart(starts_there):
            raise ValueMoved("", "", other="tensors that were apart share memory")
        self._apart.learn(together)
        return call._replace(tensors=together, memory=memory)

    def _there(self) -> list[Any]:
        """What lies now in the places that the program reads."""
        if self._reads_gradients_alone:
            return [leaf.root.parameter.grad for leaf, _ in self.read]
        return [leaf.now() for leaf, _ in self.read]

    def _checked(self, there: list[Any]) -> list[torch.Tensor]:
        """What lies in the places that the program reads. Raises ValueMoved."""
        # An update of hundreds of parameters takes less time than a look at one after the other.
        if set(map(type, there)) != {torch.Tensor} or self._read_like != _layouts(there):
            for (leaf, meta), tensor in zip(self.read, there, strict=True):
                if not isinstance(tensor, torch.Tensor) or not meta.is_of(tensor):
                    raise ValueMoved("", "", other=f"{leaf.fqn} is not like before")
        return there

    @cached_property
    def _apart(self) -> _Apart:
        return _Apart()

    @cached_property
    def _reads_gradients_alone(self) -> bool:
        return all(isinstance(leaf.root, GradientOf) for leaf, _ in self.read)

    @cached_property
    def _read_like(self) -> tuple[list[object], ...]:
        """What `_layouts` gives for tensors that are like those that the program reads."""
        metas = [meta for _, meta in self.read]
        return (
            [meta.shape for meta in metas],
            [meta.stride for meta in metas],
            [meta.dtype for meta in metas],
            [meta.device for meta in metas],
        )

    def _are_apart(self, starts: Sequence[int]) -> bool:
        """True where none that is read shares memory, but for gradients that did so then."""
        shared = {id(one.parameter) for one in self.together if isinstance(one, Shares)}
        alone = [
            start
            for (leaf, _), start in zip(self.read, starts, strict=True)
            if start
            and not (isinstance(leaf.root, GradientOf) and id(leaf.root.parameter) in shared)
        ]  # what is empty starts nowhere
        return len(set(alone)) == len(alone)

    def finish(self, tensors: Sequence[torch.Tensor], call: Call) -> None:
        """After a run of the program: ``tensors`` are all that it returned."""
        if not (self.assigned or self.actions):
            return
        filling = Filling(tensors, call)
        for one in self.assigned:
            one.place.write(filling.filled(one.tree), call)
        for action in self.actions:
            args, kwargs = filling.filled((action.args, action.kwargs))
            action.call(*args, **kwargs)


class _Apart:
    """The compiled check of the tensors that a program takes, made for those of a run."""

    def __init__(self) -> None:
        self._like: Starts | None = None
        self._lessons = 0

    def starts(self, tensors: Sequence[object]) -> tuple[int, ...] | None:
        """Where each starts; None unless it is like one that was learnt, and none overlap."""
        return None if self._like is None else self._like(tuple(tensors))

    def learn(self, tensors: Sequence[torch.Tensor]) -> None:
        """These can be served. What is different in each call is not learnt for ever."""
        if self._lessons < _LESSONS:
            self._lessons += 1
            self._like = starts_apart_of_like(tuple(tensors))


def flags(name: str, left: Iterable[tuple[object, bool]]) -> Iterator[Assigned]:
    """What a step leaves of a flag: (object, how it is now)."""
    found = list(left)
    if found:
        objects, now = zip(*found, strict=True)
        yield Assigned(Flags(objects, name), constant(now))


def _layouts(tensors: list[torch.Tensor]) -> tuple[list[Any], ...]:
    """Sizes, strides, types and devices; of a tensor without strides, its layout."""
    return (
        [tensor.shape for tensor in tensors],
        [one.stride() if one.layout is torch.strided else one.layout for one in tensors],
        [tensor.dtype for tensor in tensors],
        [tensor.device for tensor in tensors],
    )


def meta_of(tensor: torch.Tensor) -> TensorMeta:
    """What a kept tensor is like, without its history: in eager it may have one."""
    return TensorMeta.of(tensor.detach())
