"""Log of the collectives of a step, for a second run of the step that communicates with nobody.

A rank runs a step twice to compare two programs of it. The other ranks may not run it again, so in
the second run each collective takes its result from the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from .._torch import OpOverload, storage_id
from .._torch.distributed.collectives import is_begun, is_wait, writes_argument
from .._torch.listening import listening, not_listening


@dataclass
class _Collective:
    """One collective of a step: its inputs, and its result; None until it is waited for."""

    name: str
    rest: tuple[Any, ...]
    sent: list[torch.Tensor]
    result: torch.Tensor | None = None

    def is_like(self, name: str, rest: tuple[Any, ...], sent: Sequence[torch.Tensor]) -> bool:
        """True for the same op and settings on tensors of the same shapes and dtypes."""
        shapes = [(one.shape, one.dtype) for one in sent] == [(t.shape, t.dtype) for t in self.sent]
        return shapes and (self.name, self.rest) == (name, rest)

    def sends(self, tensors: Sequence[torch.Tensor]) -> bool:
        """True when ``tensors`` are equal to its inputs, element by element."""
        return all(map(torch.equal, self.sent, tensors))


class CollectiveLog:
    """Inputs and results of the collectives of one step, in the order in which they begin."""

    def __init__(self) -> None:
        self._known: list[_Collective] = []
        self._begun: dict[int, tuple[_Collective, torch.Tensor]] = {}
        """Storage of a result -> its collective and the result, until it is waited for."""
        self._next = 0
        self.compared: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        """(collective, input in the first run, input in the second): the inputs should be equal."""

    def __bool__(self) -> bool:
        return bool(self._known) and all(one.result is not None for one in self._known)

    def clear(self) -> None:
        """Remove all entries."""
        self._known = []
        self._begun = {}
        self._next = 0
        self.compared = []

    def record_sent(self, op: OpOverload, args: tuple[Any, ...]) -> None:
        """Record the inputs of a collective that is about to begin."""
        with torch.no_grad(), not_listening():
            sent = [tensor.detach().clone() for tensor in _tensors(args[0])]
        self._known.append(_Collective(_name(op), args[1:], sent))

    def record_begun(self, result: object) -> None:
        """Record the result of the last collective, which has begun and may still be running."""
        if isinstance(result, torch.Tensor):
            self._begun[storage_id(result)] = self._known[-1], result.detach()

    def record_result(self, value: torch.Tensor) -> None:
        """Record the values of a result that was waited for; ``value`` may be a view of it."""
        known, whole = self._begun.pop(storage_id(value), (None, value))
        if known is not None:
            with torch.no_grad():
                known.result = whole.clone()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the collectives that run in the block."""

        def hear(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
            if is_begun(op):
                self.record_sent(op, args)
            with not_listening():
                out = op(*args, **kwargs)
                if is_begun(op):
                    self.record_begun(out)
                elif is_wait(op) and isinstance(out, torch.Tensor):
                    self.record_result(out)
            return out

        with listening(hear):
            yield

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Let the collectives of the block return the recorded results, without communication."""
        self.rewind()

        def hear(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
            with not_listening():
                return self.replay_next(op, args) if is_begun(op) else op(*args, **kwargs)

        with listening(hear):
            yield

    def rewind(self) -> None:
        """Let `replay_next` begin with the first entry."""
        self._next = 0
        self.compared = []

    def replay_next(self, op: OpOverload, args: tuple[Any, ...]) -> torch.Tensor:
        """The result of the next entry, or of an earlier one with the same inputs.

        Raises:
            RuntimeError: the next entry is of another collective.
        """
        found = self._found(_name(op), args[1:], list(_tensors(args[0])))
        assert found.result is not None
        if writes_argument(op):
            first: torch.Tensor = args[0]
            return first.copy_(found.result)
        return found.result.clone()

    def _found(self, name: str, rest: tuple[Any, ...], sent: list[torch.Tensor]) -> _Collective:
        number = self._next
        following = self._known[number] if number < len(self._known) else None
        fits = following is not None and following.is_like(name, rest, sent)
        if not (fits and following is not None and following.sends(sent)):
            for one in self._known[:number]:  # what is gathered for the backward once more
                if one.is_like(name, rest, sent) and one.sends(sent):
                    return one
        if following is None or not fits:
            was = "no more" if following is None else following.name
            raise RuntimeError(f"collective {number} is {name}, and was {was}.")
        self._next += 1
        what = f"what {name} {number} sends"
        now = [tensor.clone() for tensor in sent]  # it may be written over
        self.compared += [(what, *pair) for pair in zip(following.sent, now, strict=True)]
        return following


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return iter(value) if isinstance(value, (list, tuple)) else iter((value,))


def _name(op: OpOverload) -> str:
    return str(op.name()).partition(".")[0].removesuffix("_")
