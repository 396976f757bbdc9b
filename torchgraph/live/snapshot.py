"""Everything of the user's that a step may change, and the way back to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from .._torch.distributed.held import local
from ..ir import bits
from .random_state import RandomState

_CONTAINERS = (dict, list, set, deque)


class Snapshot:
    """The contents of objects, of the containers and tensors in them, and of random generators.

    Identities stay: containers are refilled and tensors written where they are, so that whoever
    holds one holds the same afterwards. Objects inside of attributes, other than containers and
    tensors, are not looked into.

    Args:
        owners: objects whose attributes are kept.
        tensors: further tensors.
        unwritten: the ids of tensors that nobody writes into: no copy is made of them.
    """

    def __init__(
        self,
        owners: Iterable[object],
        tensors: Iterable[object],
        *,
        unwritten: Container[int] = (),
    ) -> None:
        self._unwritten = unwritten
        self._containers: dict[int, tuple[object, object]] = {}
        self._tensors: dict[int, _Saved] = {}
        self._numbers: list[tuple[Any, Any, object]] = []
        self.is_back = False
        """True once everything is as before."""
        for owner in owners:
            self._take(vars(owner))
        for tensor in tensors:
            self._take(tensor)

    def keep(self, value: object) -> None:
        """Keep one more container or tensor."""
        self._take(value)

    def keep_number(self, root: Any, key: Any, value: object) -> None:
        """A number in a place of the user's: ``root[key]``."""
        self._numbers.append((root, key, value))

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Restore everything, the generators too, when the block ends or raises."""
        with RandomState().kept():
            try:
                yield
            finally:
                self.restore()
                self.is_back = True

    def restore(self) -> None:
        """Restore everything but the generators."""
        for container, contents in self._containers.values():
            _refill(container, contents)
        for root, key, value in self._numbers:
            root[key] = value
        with torch.no_grad():
            for saved in self._tensors.values():
                saved.restore()

    @property
    def nbytes(self) -> int:
        """Bytes of the copies of tensors."""
        return sum(saved.nbytes for saved in self._tensors.values())

    def moved(self, among: Container[int]) -> bool:
        """True when a tensor with one of these ids has changed."""
        return any(saved.moved() for key, saved in self._tensors.items() if key in among)

    def _take(self, value: object) -> None:
        pending = [value]
        while pending:
            found = pending.pop()
            if isinstance(found, torch.Tensor):
                known = id(found) in self._tensors or id(found) in self._unwritten
                if not known and _has_data(found):
                    self._tensors[id(found)] = _Saved(found)
            elif isinstance(found, tuple):
                pending.extend(found)
            elif isinstance(found, _CONTAINERS) and id(found) not in self._containers:
                self._containers[id(found)] = (found, _contents(found))
                pending.extend(found.values() if isinstance(found, dict) else found)


class _Saved:
    """A tensor: its data, where they lie, and its gradient."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._here = local(tensor)
        self._place = self._here.data
        self._data = self._here.detach().clone()
        self._grad = tensor.grad if tensor.is_leaf else None
        self._grad_data = None if self._grad is None else local(self._grad).detach().clone()
        self._requires_grad = tensor.requires_grad

    @property
    def nbytes(self) -> int:
        return self._data.nbytes + (0 if self._grad_data is None else self._grad_data.nbytes)

    def moved(self) -> bool:
        """True when the tensor has changed."""
        return not bits.same(self._here.detach(), self._data)

    def restore(self) -> None:
        tensor, here, place = self._tensor, self._here, self._place
        moved = here.data_ptr() != place.data_ptr() or here.shape != place.shape
        if moved or here.stride() != place.stride():
            here.data = place
        if not bits.same(place, self._data):
            place.copy_(self._data)  # through .data, which leaves the version counter alone
        if tensor.is_leaf:
            tensor.requires_grad_(self._requires_grad)
            if tensor.grad is not self._grad:
                tensor.grad = self._grad
            if self._grad is not None and self._grad_data is not None:
                local(self._grad).data.copy_(self._grad_data)


def _has_data(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_meta or is_lazy(tensor):
        return False
    # The Graph itself holds its last batch as tensors whose memory is given back.
    tensor = local(tensor)
    return not tensor.numel() or bool(tensor.untyped_storage().nbytes())


def _contents(container: Any) -> Any:
    return list(container.items()) if isinstance(container, dict) else list(container)


def _refill(container: Any, contents: Any) -> None:
    now = _contents(container)
    if len(now) == len(contents) and all(map(_is, now, contents)):
        return
    container.clear()
    if isinstance(container, (dict, set)):
        container.update(contents)
    else:
        container.extend(contents)


def _is(left: object, right: object) -> bool:
    if isinstance(left, tuple) and isinstance(right, tuple) and len(left) == len(right) == 2:
        return left[0] is right[0] and left[1] is right[1]
    return left is right
