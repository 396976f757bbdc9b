"""The map from memory to tape values: tensors are known by storage and layout, not by object.

Autograd returns saved tensors as other objects, and so do ``detach()`` and ``.data``. A weak
reference to a storage keeps its address from reuse, but not its data alive.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Iterator

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..._torch import storage_id
from ..._torch.distributed.held import local
from ..._torch.listening import not_listening
from ..._torch.tensors import address_of
from ...guards import Alias
from ...ir.aliasing import has_strides, span
from ...ir.program import Role
from ...live.step import Leaf
from ...objects import is_a
from ..tape.tape import Tape, TensorLayout

Place = tuple[int, int | torch.SymInt, torch.Size, tuple[int, ...], torch.dtype, bool, bool]
"""Address of the storage, offset, shape, stride, dtype, whether conjugated, whether negated."""


class Memory:
    """The map from storages and layouts to value numbers of a tape."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._storages: dict[int, tuple[int, StorageWeakRef]] = {}
        self._numbers = itertools.count()
        self._values: dict[Place, int] = {}
        self._first: dict[int, int] = {}
        """Storage -> the first value known in it."""
        self._strange: dict[int, tuple[torch.Tensor, int]] = {}
        """Tensors without a storage, by identity."""
        self._starts: dict[int, int] = {}
        """Storage of an argument -> its offset there, which differs in the next batch."""
        self._spans: dict[int, list[tuple[int, int]]] = {}
        """Storage of arguments -> where each begins and ends."""
        self._rest: dict[int, int] = {}
        """Storage of an argument -> the number for its parts outside of all arguments."""
        self._entered: dict[int, list[tuple[tuple[int, int], int]]] = {}
        """Storage -> the spans of memory from before the step, with their values."""
        self._reached: set[int] = set()
        """Storages of which the step reads more than any one value covers."""
        self._changed: set[int] = set()
        """Storages that ops have written."""
        self._read: dict[int, weakref.ref[torch.Tensor]] = {}
        """The tensors that ops have read, by identity."""

    def argument(self, tensor: torch.Tensor) -> int:
        """A new value for an argument of the step, with offsets relative to its start."""
        if has_strides(tensor):
            number = self.storage(tensor)
            self._starts.setdefault(number, int(local(tensor).storage_offset()))
            self._spans.setdefault(number, []).append(span(tensor))
        return self.new(tensor)

    def entered(self, tensor: torch.Tensor) -> int:
        """A new value for memory from before the step."""
        index = self.new(tensor)
        if has_strides(tensor):
            self._entered.setdefault(self._number(tensor), []).append((span(tensor), index))
        return index

    def offset(self, tensor: torch.Tensor) -> int:
        """The offset of a tensor in its memory."""
        start = self._starts.get(self._number(tensor), 0)
        return int(local(tensor).storage_offset()) - start

    def set_apart(self, tensor: torch.Tensor) -> None:
        """Separate the memory of an argument from ``tensor``, in the same storage.

        Batches are rows of a data set, say, of which the step reads others: these stay where they
        are when the next batch comes.
        """
        if not has_strides(tensor):
            return
        number = self.storage(tensor)
        if number not in self._rest and self._is_outside(number, tensor):
            self._rest[number] = next(self._numbers)

    def _is_outside(self, number: int, tensor: torch.Tensor) -> bool:
        """True for a tensor in an argument's storage that is not inside an argument."""
        spans = self._spans.get(number)
        if spans is None:
            return False
        first, last = span(tensor)
        return not any(begin <= first and last <= end for begin, end in spans)

    def _number(self, tensor: torch.Tensor) -> int:
        number = self.storage(tensor)
        if number not in self._rest or not self._is_outside(number, tensor):
            return number
        return self._rest[number]

    def find(self, tensor: torch.Tensor) -> int | None:
        """The value with the memory and layout of ``tensor``; None for none."""
        return self.at(tensor, place_of(tensor))

    def at(self, tensor: torch.Tensor, place: Place | None) -> int | None:
        """The value at ``place``, the `place_of` of ``tensor``; None for none."""
        if place is not None:
            return self._values.get(place)
        known = self._strange.get(id(tensor))
        return None if known is None else known[1]

    def put(self, tensor: torch.Tensor, index: int) -> None:
        """Map the memory and layout of ``tensor`` to ``index``."""
        place = place_of(tensor)
        if place is None:
            self._strange[id(tensor)] = (tensor, index)
            return
        self._values[place] = index
        self._first.setdefault(self._number(tensor), index)

    def new(self, tensor: torch.Tensor) -> int:
        """A new value on the tape for a tensor."""
        index = self._tape.add(self.layout(tensor))
        self.put(tensor, index)
        return index

    def produced(self, tensor: torch.Tensor) -> int:
        """A new value for the result of a collective."""
        with not_listening():
            self._tape.collectives.record_result(tensor)
        return self.new(tensor)

    def result(self, tensor: torch.Tensor) -> int:
        """The value of an op's result: the one at its place, or a new one."""
        place = place_of(tensor)
        index = self.at(tensor, place)
        if index is None and place is not None:
            layout = self._strided(tensor)
            index = self._values[place] = self._tape.add(layout)
            self._first.setdefault(layout.storage, index)
        return self.new(tensor) if index is None else index

    def in_storage(self, tensor: torch.Tensor) -> int | None:
        """The first value in the storage of ``tensor``; None where the storage is new."""
        if not has_strides(tensor):
            return None
        if storage_id(tensor) not in self._storages:
            return None
        return self._first.get(self._number(tensor))

    def base(self, tensor: torch.Tensor) -> int | None:
        """The value that ``tensor`` is a view of; None in memory unknown so far."""
        first = self.in_storage(tensor)
        if first is None:
            return None
        entered = self._entered.get(self._number(tensor))
        if entered is None:
            return first
        begin, end = span(tensor)
        for (start, stop), index in entered:
            if start <= begin and end <= stop:
                return index
        over = [index for (start, stop), index in entered if start < end and begin < stop]
        if over:
            self._reached.add(self.storage(tensor))
        return over[0] if over else None

    def write(self, tensor: torch.Tensor) -> None:
        """Note that an op writes ``tensor``."""
        self._changed.add(self.storage(tensor))

    def torn(self, tensor: torch.Tensor) -> bool:
        """True where the memory is written, and no value covers all that the step reads of it."""
        number = self.storage(tensor)
        return number in self._reached and number in self._changed

    def storage(self, tensor: torch.Tensor) -> int:
        """The number of a storage, assigned at its first use."""
        held = local(tensor).untyped_storage()
        known = self._storages.get(address_of(held))
        if known is None:
            known = self._storages[address_of(held)] = (next(self._numbers), StorageWeakRef(held))
        return known[0]

    def read(self, tensor: torch.Tensor) -> None:
        """Note that an op reads ``tensor``, in memory from before the step."""
        self._read[id(tensor)] = weakref.ref(tensor)

    def aliases(self, leaves: Iterable[Leaf]) -> Iterator[Alias]:
        """The live tensors that the step read in the memory of a state, states excepted."""
        states = [leaf for leaf in leaves if is_a(leaf.value, torch.Tensor)]
        own = {id(held) for leaf in states for held in (leaf.value, local(leaf.value))}
        paths = {
            storage_id(leaf.value): leaf.fqn
            for leaf in states
            if leaf.role is not Role.INPUT and has_strides(leaf.value)
        }
        for known, read in self._read.items():
            tensor = read()
            if tensor is not None and known not in own and has_strides(tensor):
                path = paths.get(storage_id(tensor))
                if path is not None:
                    yield Alias.of(tensor, path)

    def grown(self, tensor: torch.Tensor) -> None:
        """Drop the values of ``tensor``'s storage, which has been resized."""
        held = tensor.untyped_storage()
        self._storages[address_of(held)] = (next(self._numbers), StorageWeakRef(held))
        self._values = {key: n for key, n in self._values.items() if key[0] != address_of(held)}

    def layout(self, tensor: torch.Tensor) -> TensorLayout:
        """The layout of a tensor; one without a storage gets a negative storage number."""
        if not has_strides(tensor):
            number = -1 - len(self._strange)
            shape = () if tensor.is_nested else tuple(tensor.shape)
            return TensorLayout(number, 0, 0, shape, (), tensor.dtype, tensor.device)
        return self._strided(tensor)

    def _strided(self, tensor: torch.Tensor) -> TensorLayout:
        number, tensor = self._number(tensor), local(tensor)
        return TensorLayout(
            number,
            tensor.untyped_storage().nbytes(),
            int(tensor.storage_offset()) - self._starts.get(number, 0),
            tuple(tensor.shape),
            tensor.stride(),
            tensor.dtype,
            tensor.device,
            tensor.is_conj(),
            tensor.is_neg(),
        )


def place_of(tensor: torch.Tensor) -> Place | None:
    """The key of a tensor: storage, offset and layout; None for one without strides."""
    tensor = local(tensor)
    if not has_strides(tensor):
        return None
    return (
        storage_id(tensor),
        tensor.storage_offset(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.is_conj(),
        tensor.is_neg(),
    )
