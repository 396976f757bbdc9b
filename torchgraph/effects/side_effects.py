"""The side effects on Python objects of a step that takes its own update.

A Graph that updates by itself starts each call without gradients and leaves none. A function that
calls ``optimizer.step()`` reads ``.grad``, closures and attributes from earlier calls, and leaves
in them what eager leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch

from .._torch.distributed.held import local
from ..guards import Starts, starts_apart_of_like
from ..ir.program import TensorMeta
from ..library.expect import ValueMoved
from ..live.inputs import Call
from ..live.step import Leaf
from .entry_state import Bounded, Filled, HaveGradients, Keyed, Pair, Shares, ValueAtEntry
from .trees import Filling, constant, freeze

_ATTEMPTS = 4
"""Limit of the compiled checks made for new tensor layouts."""


class Destination(Protocol):
    """A place that keeps a value between calls."""

    @property
    def key(self) -> tuple[object, ...]:
        """A hash key, equal for equal places."""

    def write(self, value: object, call: Call) -> None:
        """Store ``value``."""


@dataclass(frozen=True)
class GradientOf(Keyed):
    """The ``.grad`` of a tensor, as a destination and as the root of a leaf."""

    parameter: torch.Tensor

    def __getitem__(self, key: str) -> object:
        return self.parameter.grad

    def write(self, value: Any, call: Call) -> None:
        """Store ``value``."""
        self.parameter.grad = value


@dataclass(frozen=True)
class OnArgument(Keyed):
    """An attribute of an argument tensor: its gradient, a flag, an attribute of the user's.

    ``position`` is its index among the tensors of the call.
    """

    position: int
    name: str

    def write(self, value: object, call: Call) -> None:
        """Set the attribute."""
        setattr(call.tensors[self.position], self.name, value)


@dataclass(frozen=True)
class Flags(Keyed):
    """A boolean attribute of several objects: ``training``, ``requires_grad``."""

    objects: tuple[object, ...]
    name: str

    def write(self, value: Any, call: Call) -> None:
        """Set the flag of each object."""
        for one, flag in zip(self.objects, value, strict=True):
            if getattr(one, self.name) is not flag:
                setattr(one, self.name, flag)


@dataclass(frozen=True)
class Assigned:
    """An assignment after each replay."""

    place: Destination
    tree: object
    """The value, in the form that `Filling.filled` takes; None for None."""


@dataclass(frozen=True)
class Action:
    """A call with Python side effects only, such as ``scheduler.step()``."""

    call: Callable[..., object]
    args: tuple[object, ...]
    kwargs: dict[str, object]
    """The keyword arguments, with an `OutputSlot` for each tensor."""


@dataclass(frozen=True)
class SideEffects:
    """The Python side effects of one recorded step, and the guards that they need."""

    actions: tuple[Action, ...] = ()
    assigned: tuple[Assigned, ...] = ()
    entry: tuple[HaveGradients | ValueAtEntry | Bounded | Filled, ...] = ()
    """Guards on ``.grad`` and on reassigned places."""
    read: tuple[tuple[Leaf, TensorMeta], ...] = ()
    """Inputs of the program read from places, after the arguments of the call."""
    moved: frozenset[str] = frozenset()
    """Tensors of optimizers that actions may write: a learning rate in a tensor."""
    stepped: tuple[torch.optim.Optimizer, ...] = ()
    """Optimizers that the step itself has stepped."""
    together: tuple[Pair | Shares, ...] = ()
    """Guards on places that alias one tensor or memory, or do not."""

    def plus(
        self, assigned: Sequence[Assigned], together: Sequence[Pair | Shares] = ()
    ) -> SideEffects:
        """A copy with more assignments and alias guards."""
        more = (*self.assigned, *assigned), (*self.together, *together)
        return replace(self, assigned=more[0], together=more[1])

    def freeze(self, other: SideEffects) -> None:
        """Make objects constants that are one object in both recordings."""
        for one, its in zip(self.assigned, other.assigned, strict=True):
            freeze(one.tree, its.tree)

    def key(self) -> tuple[object, ...]:
        """A hash key, equal for steps with the same side effects."""
        actions = [(one.call, one.args, one.kwargs) for one in self.actions]
        assigned = [(one.place.key, one.tree) for one in self.assigned]
        entry = [one.key for one in self.entry]
        read = [(leaf.fqn, meta) for leaf, meta in self.read]
        together = [pair.key for pair in self.together]
        stepped = tuple(map(id, self.stepped))
        return actions, assigned, entry, read, together, self.moved, stepped

    def fits(self) -> bool:
        """True when all entry guards hold."""
        return all(one.fits() for one in self.entry)

    def found(self) -> dict[str, object]:
        """The present values of the inputs read from places, by name."""
        return {leaf.fqn: leaf.now() for leaf, _ in self.read}

    def extended(self, call: Call, found: Mapping[str, object] | None = None) -> Call:
        """``call`` with the inputs read from places: ``found`` at its start, or now.

        Raises:
            ValueMoved: one has another layout than in the recording.
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
        """The present values of the inputs read from places."""
        if self._reads_gradients_alone:
            return [leaf.root.parameter.grad for leaf, _ in self.read]
        return [leaf.now() for leaf, _ in self.read]

    def _checked(self, there: list[Any]) -> list[torch.Tensor]:
        """The present inputs read from places, guarded. Raises ValueMoved."""
        # Batched: with hundreds of parameters a check of each takes longer than the update.
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
        """The `_layouts` of tensors that fit the inputs read from places."""
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
        ]  # an empty tensor has no address
        return len(set(alone)) == len(alone)

    def finish(self, tensors: Sequence[torch.Tensor], call: Call) -> None:
        """Apply the side effects after a run of the program, which returned ``tensors``."""
        if not (self.assigned or self.actions):
            return
        filling = Filling(tensors, call)
        for one in self.assigned:
            one.place.write(filling.filled(one.tree), call)
        for action in self.actions:
            args, kwargs = filling.filled((action.args, action.kwargs))
            action.call(*args, **kwargs)


class _Apart:
    """A cache of compiled checks that the inputs read from places do not overlap."""

    def __init__(self) -> None:
        self._like: Starts | None = None
        self._attempts = 0

    def starts(self, tensors: Sequence[object]) -> tuple[int, ...] | None:
        """The addresses of the tensors; None unless their layouts are cached, and none overlap."""
        return None if self._like is None else self._like(tuple(tensors))

    def learn(self, tensors: Sequence[torch.Tensor]) -> None:
        """Cache a check for these layouts, a few times at most."""
        if self._attempts < _ATTEMPTS:
            self._attempts += 1
            self._like = starts_apart_of_like(tuple(tensors))


def flags(name: str, left: Iterable[tuple[object, bool]]) -> Iterator[Assigned]:
    """The assignments of a flag, from (object, its new value)."""
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
    """The layout of a stored tensor, without its history, which it may have in eager."""
    return TensorMeta.of(tensor.detach())
