"""The inputs of a recorded step: states, arguments of the call, free tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from .._torch.listening import not_listening
from ..effects.entry_state import tensors_inside
from ..effects.side_effects import Assigned, OnArgument, flags
from ..effects.trees import Trees, constant
from ..guards import ABSENT
from ..guards.aspects import own
from ..ir.program import Role
from ..live.inputs import Call, paths
from ..live.step import Leaf, Step
from ..structure import Contents, Unfit
from .history import has_history
from .ops.recorder import Recorder
from .tape.watch import is_plain


class Inputs:
    """The inputs of one recording, with their values on the tape.

    Args:
        index: by leaf of the step, its value.
        contents: the contents of the arguments before the step.
        add: called with each other tensor of the step, as a leaf and as it was first used.
        gradient: gives a leaf for unknown memory that is a gradient from before the step.
    """

    def __init__(
        self,
        step: Step,
        index: list[int],
        recorder: Recorder,
        contents: Contents,
        add: Callable[[Leaf, torch.Tensor], None],
        gradient: Callable[[torch.Tensor], Leaf | None],
    ) -> None:
        self._step, self._index, self._recorder = step, index, recorder
        self._contents, self._add, self._gradient = contents, add, gradient
        self._arguments: list[tuple[Leaf, int]] = []
        self._trained: list[bool] = []
        """By argument, its ``requires_grad`` at entry."""
        self._attributes: list[dict[str, object]] = []
        """By argument, its attributes at entry."""
        self.free: list[tuple[Leaf, int]] = []
        """Free tensors, read by reference, and gradients from before the step."""

    def take(self, call: Call) -> None:
        """Register the arguments."""
        names = paths(call.args, call.kwargs)
        for position, (name, tensor) in enumerate(zip(names, call.tensors, strict=True)):
            self._recorder.undo.foreign(tensor)
            leaf = Leaf(name, Role.INPUT, call.tensors, (position,), tensor)
            self._arguments.append((leaf, self._recorder.memory.argument(tensor)))
            self._add(leaf, tensor)
            self._trained.append(tensor.requires_grad)
            self._attributes.append(dict(own(tensor)))

    def changed(self) -> list[Assigned]:
        """The assignments of ``requires_grad`` flags that the step changed."""
        now = [leaf.value.requires_grad for leaf, _ in self._arguments]
        return [
            *flags("requires_grad", self._step.flags.moved()),
            *(
                Assigned(OnArgument(number, "requires_grad"), constant(now[number]))
                for number, before in enumerate(self._trained)
                if now[number] is not before
            ),
        ]

    def marked(self) -> list[Assigned]:
        """Assignments of plain attributes on arguments: ``x.mask = 5``."""
        return [
            Assigned(OnArgument(position, name), constant(now))
            for position, _, name, now in self._put()
            if is_plain(now)
        ]

    def _put(self) -> Iterator[tuple[int, Leaf, str, object]]:
        """(position, argument, name, value) of each attribute that the step set on one."""
        for position, (leaf, _) in enumerate(self._arguments):
            before = self._attributes[position]
            for name, now in own(leaf.value).items():
                if before.get(name, ABSENT) is not now:
                    yield position, leaf, name, now

    def attached(
        self, slot: Callable[[str, torch.Tensor], object], trees: Trees
    ) -> Iterator[Assigned]:
        """Assignments of attributes on arguments: ``x.mask = ...``. Raises Unfit."""
        put = "what it puts on an argument"
        for position, leaf, name, now in self._put():
            if any(map(has_history, tensors_inside(now))):
                raise Unfit(f"{put} keeps the history of its tensor: detach() it")
            try:
                tree = trees.of(now, partial(slot, f"{leaf.fqn}.{name}"))
            except Unfit as unfit:
                raise Unfit(f"{put} {unfit.what}") from None
            yield Assigned(OnArgument(position, name), tree)

    def meet(self, tensor: torch.Tensor, index: int) -> None:
        """Register an unknown tensor as a free input, by reference."""
        gradient = self._gradient(tensor)
        if gradient is not None:
            self.free.append((gradient, index))
            self._recorder.undo.foreign(tensor)
            return
        with not_listening():
            held = tensor.detach() if tensor.grad_fn is not None else tensor
            if self._contents.in_an_array(held):
                self._recorder.tape.constants[index] = held.clone()
                return
        leaf = Leaf(f"free.{len(self.free)}", Role.FREE, [held], (0,), held)
        self.free.append((leaf, index))
        self._step.flags.meet(leaf.fqn, held)
        self._add(leaf, tensor)
        self._recorder.undo.foreign(held)

    def __iter__(self) -> Iterator[tuple[Leaf, int]]:
        yield from zip(self._step.leaves, self._index, strict=True)
        yield from self._arguments
        yield from self.free

    @property
    def leaves(self) -> list[Leaf]:
        """The leaves of all inputs."""
        return [leaf for leaf, _ in self]

    def tensors(self) -> list[Leaf]:
        """The leaves that are tensors."""
        return [leaf for leaf in self.leaves if isinstance(leaf.value, torch.Tensor)]
