"""Undo log: copies of memory from before a step's writes, to restore after an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set as AbstractSet
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch

from ..._torch import storage_id
from ..._torch.distributed.held import local
from ..._torch.modules import state_of
from ..._torch.tensors import address_of
from ...ir.aliasing import has_strides
from ...ir.program import Role
from ...live.snapshot import Placed, Written, contents_of, refill
from ...live.step import Leaf, Step
from ...random_state import RandomState
from ..tape.watch import AttributeWatch


class SupportsKeep(Protocol):
    """What keeps all that a step is about to change."""

    def keep(self, tensor: torch.Tensor) -> None:
        """Keep the memory of ``tensor`` before a write."""

    def holders(self) -> list[object]:
        """The containers in which it holds what may hold symbolic numbers."""

    def keep_object(self, value: object) -> None:
        """Keep what a container or an object holds, before a line changes it."""

    def meets(self, value: object) -> None:
        """Handle a value from before the step, before a line uses it."""

    def hold_back(self, prints: Callable[..., object], *values: object, **given: Any) -> None:
        """Hold back what ``print`` writes."""


_attempt: ContextVar[SupportsKeep | None] = ContextVar("_attempt", default=None)


@contextmanager
def attempted(by: SupportsKeep) -> Iterator[None]:
    """Let ``by`` hear what the steps that are recorded in the block are about to change."""
    token = _attempt.set(by)
    try:
        yield
    finally:
        _attempt.reset(token)


class Undo:
    """The undo log of one step: each earlier storage is copied before its first write."""

    def __init__(self) -> None:
        self._earlier: dict[int, torch.UntypedStorage] = {}
        """Storages that predate the step."""
        self._written = Written()
        self.trial: SupportsKeep | None = _attempt.get()
        """What keeps all that is changed, where the step, or an optimizer's, may be undone."""
        self.refuses: Callable[[torch.Tensor], None] = lambda tensor: None
        """Raises for a tensor that a forward or backward must not write."""
        self.moved: Callable[[], AbstractSet[object]] = set
        """Gives the named places that the step has changed."""
        self.raised: set[Any] = set()
        """(class, code, line) of the errors in the user's lines, up to now."""

    def foreign(self, tensor: torch.Tensor) -> None:
        """Note that ``tensor`` predates the step."""
        if has_strides(tensor):
            storage = local(tensor).untyped_storage()
            self._earlier.setdefault(address_of(storage), storage)

    def holds(self, address: int) -> bool:
        """True for a storage that predates the step."""
        return address in self._earlier

    def keep(self, tensor: torch.Tensor) -> None:
        """Copy the memory of ``tensor`` before its first write, if it predates the step."""
        self.refuses(tensor)
        self._copy(tensor)

    def _copy(self, tensor: torch.Tensor) -> None:
        storage = self._earlier.get(storage_id(tensor))
        if storage is not None:
            self._written.keep(storage)

    def keep_buffers(self, leaves: Iterable[Leaf]) -> None:
        """Copy the buffers before a step whose writes are not intercepted."""
        for leaf in leaves:
            if leaf.role is Role.BUFFER:
                self._copy(leaf.value)

    def put_back(self) -> None:
        """Restore all memory from before the step."""
        self._written.put_back()


@contextmanager
def taken_back(
    step: Step,
    undo: Undo,
    attributes: AttributeWatch,
    applies: Callable[[BaseException], bool],
    unobserved: bool,
) -> Iterator[None]:
    """Undo the step when the block raises an error that ``applies``.

    Tensors, gradients, attributes and generators; of a step that is ``unobserved`` only buffers
    may be written.
    """
    undo.keep_buffers(step.leaves if unobserved else ())
    random = RandomState()
    holders = [holder for module in step.modules.values() for holder in state_of(module)]
    held = [(holder, contents_of(holder)) for holder in holders]
    placed = [Placed(leaf.value) for _, leaf in step.tensors()]

    def tensors_back() -> None:
        for holder, before in held:
            refill(holder, before)
        for one in placed:
            one.put_back()

    back = (undo.put_back, tensors_back, attributes.put_back, random.put_back)
    try:
        yield
    except BaseException as error:
        if applies(error):
            take_back(error, back)
        raise


def take_back(error: BaseException, parts: Iterable[Callable[[], None]]) -> None:
    """Undo a step that has raised, part by part."""
    for part in parts:
        try:
            part()
        except Exception as failure:  # what the step itself raised is what counts
            _note(error, f"torchgraph could not take all of the step back: {failure!r}")


def _note(error: BaseException, text: str) -> None:
    add = getattr(error, "add_note", None)  # from Python 3.11 on
    if add is not None:
        add(text)
