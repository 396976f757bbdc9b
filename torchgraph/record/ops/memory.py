"""Memory: tensors are known by where they lie, never by the Python object.

Autograd hands saved tensors back as other objects, and so do ``detach()`` and ``.data``. A storage
is kept from being used twice by a weak reference, which pins its address and not its data.
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
from ..tape.tape import Tape, TensorLayout

Place = tuple[int, int | torch.SymInt, torch.Size, tuple[int, ...], torch.dtype, bool, bool]
"""Address of the storage, offset, shape, stride, dtype, whether conjugated, whether negated."""


class Memory:
    """Which value of a tape lies where."""

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
        """Storage of an argument -> the offset at which it begins: the next batch has another."""
        self._spans: dict[int, list[tuple[int, int]]] = {}
        """Storage of arguments -> where each begins and ends."""
        self._rest: dict[int, int] = {}
        """Storage of an argument -> the number of what lies outside of all arguments, once met."""
        self._entered: dict[int, list[tuple[tuple[int, int], int]]] = {}
        """Storage -> where what was there before the step begins and ends, and its value."""
        self._reached: set[int] = set()
        """Storages of which the step shows more than any one value holds."""
        self._changed: set[int] = set()
        """Storages that ops have written."""
        self._read: dict[int, weakref.ref[torch.Tensor]] = {}
        """The tensors that ops have read, by identity."""

    def argument(self, tensor: torch.Tensor) -> int:
        """A new value for an argument of the step: its memory begins where it does."""
        if has_strides(tensor):
            number = self.storage(tensor)
            self._starts.setdefault(number, int(local(tensor).storage_offset()))
            self._spans.setdefault(number, []).append(span(tensor))
        return self.new(tensor)

    def entered(self, tensor: torch.Tensor) -> int:
        """A new value for what was there before the step."""
        index = self.new(tensor)
        if has_strides(tensor):
            self._entered.setdefault(self._number(tensor), []).append((span(tensor), index))
        return index

    def offset(self, tensor: torch.Tensor) -> int:
        """Where in its memory a tensor lies."""
        start = self._starts.get(self._number(tensor), 0)
        return int(local(tensor).storage_offset()) - start

    def set_apart(self, tensor: torch.Tensor) -> None:
        """Tell the memory of an argument from ``tensor``, which the step found there elsewhere.

        Batches are rows of a data set, say, of which the step reads others: these stay where they
        are when the next batch comes.
        """
        if not has_strides(tensor):
            return
        number = self.storage(tensor)
        if number not in self._rest and self._is_outside(number, tensor):
            self._rest[number] = next(self._numbers)

    def _is_outside(self, number: int, tensor: torch.Tensor) -> bool:
        """True for memory of an argument's storage that is not all an argument's."""
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
        """The value that lies where ``tensor`` lies; None when nothing does."""
        return self.at(tensor, place_of(tensor))

    def at(self, tensor: torch.Tensor, place: Place | None) -> int | None:
        """The value that lies at ``place``, the `place_of` of ``tensor``; None if none does."""
        if place is not None:
            return self._values.get(place)
        known = self._strange.get(id(tensor))
        return None if known is None else known[1]

    def put(self, tensor: torch.Tensor, index: int) -> None:
        """From now on, ``index`` is what lies where ``tensor`` lies."""
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
        """A new value for what a collective has given."""
        with not_listening():
            self._tape.collectives.record_result(tensor)
        return self.new(tensor)

    def result(self, tensor: torch.Tensor) -> int:
        """The value that an op has returned: what lay there, or a new one."""
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
        """The value that ``tensor`` is a view of; None where nothing known lies in its memory."""
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
        """An op writes ``tensor``."""
        self._changed.add(self.storage(tensor))

    def torn(self, tensor: torch.Tensor) -> bool:
        """True where the memory is written, and no value holds all that the step shows of it."""
        number = self.storage(tensor)
        return number in self._reached and number in self._changed

    def storage(self, tensor: torch.Tensor) -> int:
        """The number of a storage, given when it is first met."""
        held = local(tensor).untyped_storage()
        known = self._storages.get(address_of(held))
        if known is None:
            known = self._storages[address_of(held)] = (next(self._numbers), StorageWeakRef(held))
        return known[0]

    def read(self, tensor: torch.Tensor) -> None:
        """An op reads ``tensor``, whose memory was there before the step."""
        self._read[id(tensor)] = weakref.ref(tensor)

    def aliases(self, leaves: Iterable[Leaf]) -> Iterator[Alias]:
        """What was read in the memory of a state and is still there, but for the states."""
        states = [leaf for leaf in leaves if isinstance(leaf.value, torch.Tensor)]
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
        """The storage of ``tensor`` has more memory now, and no value that is known."""
        held = tensor.untyped_storage()
        self._storages[address_of(held)] = (next(self._numbers), StorageWeakRef(held))
        self._values = {key: n for key, n in self._values.items() if key[0] != address_of(held)}

    def layout(self, tensor: torch.Tensor) -> TensorLayout:
        """Where a tensor lies; one without a storage gets a storage number of its own, below 0."""
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
    """Where a tensor lies, and as what; None for one without strides."""
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
