"""The ``.grad`` fields that a step reads at entry and leaves at exit."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from ..._torch import storage_id
from ..._torch.names import patched
from ...effects.entry_state import GRAD, HaveGradients, Shares, gradient_of, where
from ...effects.side_effects import Assigned, Destination, GradientOf, OnArgument
from ...ir.aliasing import has_strides, span
from ...ir.program import Role
from ...lines import observes_steps
from ...live.step import Leaf
from ...objects import is_a

_HasGradients = torch.optim.Optimizer | nn.Module


class GradFields:
    """The ``.grad`` fields at the entry and exit of one step.

    Parameters are all leaves of autograd that the step knows.

    Args:
        meet: called with a tensor whose gradient is about to be replaced, and which may be new.
    """

    def __init__(self, meet: Callable[[torch.Tensor], None]) -> None:
        self._meet = meet
        self._parameters: dict[int, Leaf] = {}
        self._trained: set[int] = set()
        """The parameters that required a gradient when added."""
        self._found: dict[int, torch.Tensor | None] = {}
        """The gradient at entry, by the id of the parameter."""
        self._cleared: set[int] = set()
        """The parameters whose gradient was dropped unread."""
        self._read: dict[int, Leaf] = {}
        self._asked: set[int] = set()
        """The tensors whose gradient user or library code has read, other than to drop it."""

    def add(self, leaf: Leaf) -> None:
        """Register a tensor of the step, before the step touches its gradient."""
        tensor = leaf.value
        if tensor.is_leaf and id(tensor) not in self._parameters:
            self._parameters[id(tensor)] = leaf
            self._found[id(tensor)] = tensor.grad
            if tensor.requires_grad:
                self._trained.add(id(tensor))

    def input(self, tensor: torch.Tensor) -> Leaf | None:
        """A leaf for unknown memory that is a gradient from before the step."""
        for key, gradient in self._found.items():
            if gradient is None or not has_strides(gradient) or key in self._read:
                continue
            if where(gradient) == where(tensor):
                owner = self._parameters[key]
                root = GradientOf(owner.value)
                leaf = Leaf(f"{owner.fqn}.grad", Role.INPUT, root, ("grad",), gradient)
                self._read[key] = leaf
                return leaf
        return None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Detect gradients dropped unread, as by ``zero_grad``: no step depends on them."""
        here, grad = threading.get_ident(), GRAD
        dropping: list[_HasGradients] = []

        def asked(tensor: torch.Tensor) -> object:
            asker = sys._getframe(1).f_code.co_filename
            if threading.get_ident() == here and not (dropping or observes_steps(asker)):
                self._asked.add(id(tensor))
            return grad.__get__(tensor)

        def replaced(tensor: torch.Tensor, value: object) -> None:
            if threading.get_ident() == here and tensor.is_leaf:
                self._meet(tensor)
                if value is None and self._is_unread(tensor):
                    self._cleared.add(id(tensor))
            grad.__set__(tensor, value)

        def watching(cls: type[_HasGradients]) -> Callable[..., None]:
            # As it stands in the class: under OneFlow's names it asks who calls.
            method: Any = vars(cls)["zero_grad"]

            def zero_grad(owner: _HasGradients, *args: object, **kwargs: object) -> None:
                original: Callable[..., None] = method.__get__(owner, type(owner))
                if threading.get_ident() != here:
                    original(*args, **kwargs)
                    return
                unread = [p for p in _parameters_of(owner) if self._is_unread(p)]
                dropping.append(owner)
                try:
                    original(*args, **kwargs)
                finally:
                    dropping.pop()
                self._cleared.update(id(p) for p in unread if gradient_of(p) is None)

            return zero_grad

        with ExitStack() as stack:
            gradient = property(asked, replaced, grad.__delete__)
            stack.enter_context(patched(torch.Tensor, "grad", gradient))
            for cls in (torch.optim.Optimizer, nn.Module):
                stack.enter_context(patched(cls, "zero_grad", watching(cls)))
            yield

    def _is_unread(self, parameter: torch.Tensor) -> bool:
        known = id(parameter) in self._found
        read = id(parameter) in self._read or id(parameter) in self._asked
        return known and not read and gradient_of(parameter) is self._found[id(parameter)]

    # --- at the end -------------------------------------------------------------------------------

    def left(self, slot: Callable[[str, torch.Tensor], object]) -> list[Assigned]:
        """Gradients that the step replaces or clears; ``slot`` makes one a result of the program.

        Those that it adds to are written in place.
        """
        left: list[Assigned] = []
        for key, leaf in self._parameters.items():
            before, now = self._found[key], gradient_of(leaf.value)
            if now is before and (now is not None or key not in self._cleared):
                continue
            place: Destination = GradientOf(leaf.value)
            if leaf.role is Role.INPUT:
                place = OnArgument(leaf.path[0], "grad")
            tree = None if now is None else slot(f"{leaf.fqn}.grad", now)
            left.append(Assigned(place, tree))
        return left

    def why(self, before: set[int]) -> str:
        """The reason that no program can leave these gradients; empty when one can.

        Args:
            before: the storages from before the step.
        """
        produced = {key: gradient for key, gradient in self._found.items() if gradient is not None}
        given = (self._parameters[key] for key in produced)
        if name := next((leaf.fqn for leaf in given if leaf.role is Role.INPUT), ""):
            return f"{name} comes with a gradient"
        found = self._shared(before - set(map(storage_id, produced.values())))
        return f"{found} lies in the memory of another tensor after the step" if found else ""

    def _shared(self, states: set[int]) -> str:
        """The first gradient that aliases the memory of a state, or of another gradient."""
        parts: dict[int, list[tuple[int, int]]] = {}
        for key, leaf in self._parameters.items():
            now = gradient_of(leaf.value)
            if now is None or now is self._found[key] or not has_strides(now):
                continue
            storage, (begin, end) = storage_id(now), span(now)
            others = parts.setdefault(storage, [])
            if storage in states or any(begin < e and b < end for b, e in others):
                return f"{leaf.fqn}.grad"
            others.append((begin, end))
        return ""

    def together(self, known: Sequence[Leaf]) -> Iterator[Shares]:
        """Guards on entry gradients that alias the memory of others of these inputs."""
        first: dict[int, Leaf] = {}
        for leaf in known:
            if is_a(leaf.value, torch.Tensor) and has_strides(leaf.value):
                first.setdefault(storage_id(leaf.value), leaf)
        for key, gradient in self._found.items():
            if gradient is not None and has_strides(gradient):
                other = first.get(storage_id(gradient))
                if other is not None and other is not self._read.get(key):
                    yield Shares.of(self._parameters[key].value, gradient, other)

    def entry(self) -> Iterator[HaveGradients]:
        """Guards on which parameters had a gradient at entry."""
        for present in (False, True):
            found = (
                leaf.value
                for key, leaf in self._parameters.items()
                if key not in self._cleared and leaf.role is not Role.INPUT
                if (self._found[key] is not None) == present
                if present
                or key in self._trained
                or key in self._asked
                or leaf.value.requires_grad
                or gradient_of(leaf.value) is not None
            )
            yield HaveGradients(tuple(found), present)


def _parameters_of(owner: _HasGradients) -> Iterator[torch.Tensor]:
    if isinstance(owner, nn.Module):
        yield from owner.parameters()
        return
    for group in owner.param_groups:
        yield from group["params"]
