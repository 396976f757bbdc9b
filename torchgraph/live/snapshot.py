"""Everything of the user's that a step may change, and the way back to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from .._torch.distributed.held import local
from .._torch.tensors import address_of, count_again_from, version_of
from ..guards.aspects import base_of, elements, entries_in, values_in
from ..ir import bits
from ..objects import is_a
from ..random_state import RandomState

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
        """Restore everything, the generators too, when the block ends or raises.

        The writes of the block are not counted: a backward that waits may have saved the tensors.
        """
        with RandomState().kept():
            try:
                yield
            finally:
                self.restore()
                counted = [saved for saved in self._tensors.values() if saved.version is not None]
                count_again_from(
                    [saved.tensor for saved in counted], [saved.version or 0 for saved in counted]
                )
                self.is_back = True

    def restore(self) -> None:
        """Restore everything but the generators."""
        for container, contents in self._containers.values():
            refill(container, contents)
        for root, key, value in self._numbers:
            root[key] = value
        with torch.no_grad():
            for saved in self._tensors.values():
                saved.put_back()

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
            if is_a(found, torch.Tensor):
                known = id(found) in self._tensors or id(found) in self._unwritten
                if not known and _has_data(found):
                    self._tensors[id(found)] = _Saved(found)
            elif is_a(found, tuple):
                pending.extend(elements(found))
            elif is_a(found, _CONTAINERS) and id(found) not in self._containers:
                self._containers[id(found)] = (found, contents_of(found))
                pending.extend(values_in(found))


class Placed:
    """Where the data of a tensor lie, and its gradient: no copies."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.here = tensor, local(tensor)
        self.place = self.here.data
        self.grad = tensor.grad if tensor.is_leaf else None

    def put_back(self) -> None:
        """Let the tensor be where it was, with the gradient that it had."""
        here, place = self.here, self.place
        moved = here.data_ptr() != place.data_ptr() or here.shape != place.shape
        if moved or here.stride() != place.stride():
            here.data = place
        if self.tensor.is_leaf and self.tensor.grad is not self.grad:
            self.tensor.grad = self.grad


class Written:
    """Memory as it was before its first write."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def keep(self, storage: torch.UntypedStorage) -> None:
        """Copy a storage that is about to be written."""
        if not self.has(storage):
            self._before[address_of(storage)] = (storage, storage.clone())

    def has(self, storage: torch.UntypedStorage) -> bool:
        """True where the storage was copied."""
        return address_of(storage) in self._before

    def put_back(self) -> None:
        """Restore all memory that was copied."""
        for storage, before in self._before.values():
            storage.copy_(before)


class _Saved(Placed):
    """A tensor: its data, where they lie, and its gradient."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor)
        self._data = self.here.detach().clone()
        self._grad_data = None if self.grad is None else local(self.grad).detach().clone()
        self._requires_grad = tensor.requires_grad
        counts = self.here is tensor and not tensor.is_inference()
        self.version = version_of(tensor) if counts else None

    @property
    def nbytes(self) -> int:
        return self._data.nbytes + (0 if self._grad_data is None else self._grad_data.nbytes)

    def moved(self) -> bool:
        """True when the tensor has changed."""
        return not bits.same(self.here.detach(), self._data)

    def put_back(self) -> None:
        """Let the tensor be and hold what it was and held."""
        super().put_back()
        if not bits.same(self.place, self._data):
            self.place.copy_(self._data)  # through .data, which leaves the version counter alone
        if self.tensor.is_leaf:
            self.tensor.requires_grad_(self._requires_grad)
            if self.grad is not None and self._grad_data is not None:
                local(self.grad).data.copy_(self._grad_data)


def _has_data(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_meta or is_lazy(tensor):
        return False
    # The Graph itself holds its last batch as tensors whose memory is given back.
    tensor = local(tensor)
    return not tensor.numel() or bool(tensor.untyped_storage().nbytes())


def contents_of(container: Any) -> list[Any]:
    """The contents of a container; of a dict, its items."""
    if not is_a(container, _CONTAINERS):
        return list(container.items())
    return entries_in(container) if is_a(container, dict) else elements(container)


def refill(container: Any, contents: Any) -> None:
    """Let a container hold what `contents_of` gave; a namespace that is no dict keeps its names."""
    now = contents_of(container)
    if len(now) == len(contents) and all(map(_is, now, contents)):
        return
    if not is_a(container, _CONTAINERS):
        for name, value in contents:
            if container[name] is not value:
                container[name] = value
        return
    base = base_of(container)  # the update of a Counter adds
    base.clear(container)
    fill = base.update if issubclass(base, (dict, set)) else base.extend
    fill(container, contents)


def _is(left: object, right: object) -> bool:
    if isinstance(left, tuple) and isinstance(right, tuple) and len(left) == len(right) == 2:
        return left[0] is right[0] and left[1] is right[1]
    return left is right
