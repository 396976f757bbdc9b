"""What collectives gave in a step that runs twice: the second time nobody is asked again.

A rank runs a step twice to compare two programs of it. The others may not, and would not answer.
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
    """One collective of a step: what it sent, and what it gave; None until it is waited for."""

    name: str
    rest: tuple[Any, ...]
    sent: list[torch.Tensor]
    gave: torch.Tensor | None = None

    def is_like(self, name: str, rest: tuple[Any, ...], sent: Sequence[torch.Tensor]) -> bool:
        """True for a collective that does the same to tensors of the same shapes."""
        shapes = [(one.shape, one.dtype) for one in sent] == [(t.shape, t.dtype) for t in self.sent]
        return shapes and (self.name, self.rest) == (name, rest)

    def sends(self, tensors: Sequence[torch.Tensor]) -> bool:
        """True for the very same elements."""
        return all(map(torch.equal, self.sent, tensors))


class Came:
    """What the collectives of one step sent and gave, in the order in which they begin."""

    def __init__(self) -> None:
        self._known: list[_Collective] = []
        self._begun: dict[int, tuple[_Collective, torch.Tensor]] = {}
        """With its result, by the storage of that, until it is waited for."""
        self._next = 0
        self.compared: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        """(which, what it sent, what it sends when the step runs again): these should agree."""

    def __bool__(self) -> bool:
        return bool(self._known) and all(one.gave is not None for one in self._known)

    def clear(self) -> None:
        """Keep nothing."""
        self._known = []
        self._begun = {}
        self._next = 0
        self.compared = []

    def sends(self, op: OpOverload, args: tuple[Any, ...]) -> None:
        """A collective is about to begin."""
        with torch.no_grad(), not_listening():
            sent = [tensor.detach().clone() for tensor in _tensors(args[0])]
        self._known.append(_Collective(_name(op), args[1:], sent))

    def begins(self, result: object) -> None:
        """It has begun."""
        if isinstance(result, torch.Tensor):
            self._begun[storage_id(result)] = self._known[-1], result.detach()

    def waited(self, result: torch.Tensor) -> None:
        """What one gave is there; ``result`` may be a part of it."""
        known, whole = self._begun.pop(storage_id(result), (None, result))
        if known is not None:
            with torch.no_grad():
                known.gave = whole.clone()

    @contextmanager
    def written(self) -> Iterator[None]:
        """The collectives of the block are kept."""

        def hear(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
            if is_begun(op):
                self.sends(op, args)
            with not_listening():
                out = op(*args, **kwargs)
                if is_begun(op):
                    self.begins(out)
                elif is_wait(op) and isinstance(out, torch.Tensor):
                    self.waited(out)
            return out

        with listening(hear):
            yield

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """The collectives of the block give what those gave that were kept."""
        self.rewind()

        def hear(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
            with not_listening():
                return self.again(op, args) if is_begun(op) else op(*args, **kwargs)

        with listening(hear):
            yield

    def rewind(self) -> None:
        """`again` begins with the first."""
        self._next = 0
        self.compared = []

    def again(self, op: OpOverload, args: tuple[Any, ...]) -> torch.Tensor:
        """What the next collective gave, or, for what was sent before, what an earlier one gave.

        Raises:
            RuntimeError: it is another one.
        """
        found = self._found(_name(op), args[1:], list(_tensors(args[0])))
        assert found.gave is not None
        if writes_argument(op):
            first: torch.Tensor = args[0]
            return first.copy_(found.gave)
        return found.gave.clone()

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
