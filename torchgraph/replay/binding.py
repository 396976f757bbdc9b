"""The values that a run takes: live tensors and numbers, and the tensors of the call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .._torch.distributed.held import local
from ..distributed.remote_states import storage_changes
from ..errors import SharedMemory
from ..ir.aliasing import restrided_inputs, storages_overlap, without_class
from ..ir.program import Program, Role
from ..library import ValueMoved
from ..live.inputs import Call
from ..live.step import Leaf
from ..objects import is_a
from .derived import Derived


class Binding:
    """A program's inputs, bound to leaves.

    Args:
        captured: the program before its passes, whose inputs the leaves are.
        program: the program that runs; its inputs may include kept casts of the leaves.
    """

    def __init__(self, captured: Program, program: Program, leaves: Sequence[Leaf]) -> None:
        self.live = {leaf.fqn: leaf for leaf in leaves}
        self.derived = Derived(program, {leaf.fqn: leaf.value for leaf in leaves})
        self._leaves = leaves
        self._now = [*(_bound(leaf.value) for leaf in leaves), *self.derived.tensors]
        self._inputs = [i for i, leaf in enumerate(leaves) if leaf.role is Role.INPUT]
        self._scalars = [i for i, leaf in enumerate(leaves) if leaf.role is Role.SCALAR]
        self.release()
        restrided = restrided_inputs(captured)
        self._restrided = frozenset(i for i in self._inputs if i in restrided)
        numbers = [(i, n) for i, n in enumerate(leaves) if not is_a(n.value, torch.Tensor)]
        self._numbers = [(i, n.root, n.path[0]) for i, n in numbers if len(n.path) == 1]
        self._nested_numbers = [(i, n) for i, n in numbers if len(n.path) > 1]
        written = program.signature.written
        self._written_leaves = [leaf for leaf in leaves if leaf.fqn in written]
        fqns = (leaves[i].fqn for i in self._inputs)
        self._written_inputs = [number for number, fqn in enumerate(fqns) if fqn in written]
        self._note_memory()

    def values(self, call: Call) -> list[Any]:
        """The inputs of the executable, always in the same list: guards cover entries not set here.

        A copy of thousands of entries would cost more than the few that change.

        Raises:
            ValueMoved, SharedMemory: an argument lies where the program cannot take it.
        """
        values = self._now
        for i, root, key in self._numbers:
            values[i] = root[key]
        for i, leaf in self._nested_numbers:
            values[i] = leaf.read()
        for i, tensor in zip(self._inputs, call.tensors, strict=True):
            plain = type(tensor) is torch.Tensor
            values[i] = tensor = tensor if plain else without_class(local(tensor))
            if i in self._restrided and tensor.storage_offset():
                raise ValueMoved("", "", other=f"{self._leaves[i].fqn} begins inside its memory")
        if self._storage_changes != storage_changes():
            self._note_memory()
        if not self._written_memory.isdisjoint(call.memory):
            hit = [start in self._written_memory for start in call.memory].index(True)
            raise SharedMemory(
                f"{self._leaves[self._inputs[hit]].fqn} shares memory with a state that the step "
                "writes."
            )
        if self._written_inputs:
            self._check_written(call)
        return values

    def numbers(self, call: Call) -> list[Any]:
        """The optimizers' numbers in a run of ``call``. Raises what `values` does."""
        try:
            values = self.values(call)
            return [values[i] for i in self._scalars]
        finally:
            self.release()

    def release(self) -> None:
        """Let the call's tensors go: a program must not keep a batch alive."""
        for i in self._inputs:
            self._now[i] = None

    def _note_memory(self) -> None:
        self._storage_changes = storage_changes()
        self._written_memory = _memory(self._written_leaves)
        self._memory = _memory(self._leaves) if self._written_inputs else set()

    def _check_written(self, call: Call) -> None:
        """Raise SharedMemory where an argument that the step writes shares memory otherwise.

        And ValueMoved for an inference tensor, which eager refuses to write.
        """
        if call.disjoint and self._memory.isdisjoint(call.memory):
            return
        written = [call.tensors[number] for number in self._written_inputs]
        if any(tensor.is_inference() for tensor in written):
            raise ValueMoved("", "", other="an inference tensor is written")
        if not storages_overlap(written, call.tensors) and not any(map(self._is_held, written)):
            return
        for number, tensor in zip(self._written_inputs, written, strict=True):
            if self._is_held(tensor) or storages_overlap([tensor], call.tensors):
                raise SharedMemory(
                    f"{self._leaves[self._inputs[number]].fqn}, which the step writes, shares "
                    "memory with another tensor."
                )

    def _is_held(self, tensor: torch.Tensor) -> bool:
        """True where it lies in the memory of a state."""
        return local(tensor).untyped_storage().data_ptr() in self._memory


def _bound(value: Any) -> Any:
    """The form in which a program takes a value: of a DTensor, its local part."""
    return without_class(local(value)) if is_a(value, torch.Tensor) else value


def _memory(leaves: Iterable[Leaf]) -> set[int]:
    """Start addresses of the storages of all leaves that are no arguments."""
    held = (leaf.value for leaf in leaves if leaf.role is not Role.INPUT)
    tensors = (local(value) for value in held if isinstance(value, torch.Tensor))
    return {tensor.untyped_storage().data_ptr() for tensor in tensors} - {0}
