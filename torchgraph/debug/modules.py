"""The modules of a Graph as plain data: paths, tensors, and which of them are met twice."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from .._torch.modules import buffers_of, children_of, parameters_of
from ..ir.program import TensorMeta
from ..objects import extra_of


@dataclass(frozen=True)
class TensorEntry:
    """A parameter or a buffer at its path; ``shared_with`` is the path that has it already."""

    path: str
    tensor: torch.Tensor
    shared_with: str = ""

    @property
    def meta(self) -> TensorMeta | None:
        """Shape, dtype and device; None before the first use of a lazy module."""
        if is_lazy(self.tensor):
            return None
        shape = tuple(self.tensor.shape)
        return TensorMeta(
            shape, self.tensor.dtype, (), self.tensor.device, self.tensor.requires_grad
        )

    @property
    def count(self) -> int:
        """Elements that are not counted elsewhere."""
        return 0 if self.shared_with or is_lazy(self.tensor) else self.tensor.numel()


@dataclass
class ModuleEntry:
    """A module at its path. One that is ``shared_with`` an earlier path has nothing below it."""

    path: str
    module: nn.Module
    shared_with: str = ""
    parameters: list[TensorEntry] = field(default_factory=list)
    buffers: list[TensorEntry] = field(default_factory=list)
    children: list[ModuleEntry] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def shallow(self) -> str:
        """Class and extra_repr on one line: ``Linear(in_features=3, ..., bias=True)``."""
        return f"{type(self.module).__name__}({extra_of(self.module)})"

    @property
    def own(self) -> int:
        """Parameter elements of this module, without its sub-modules."""
        return sum(entry.count for entry in self.parameters)

    def walk(self) -> Iterator[ModuleEntry]:
        """Yield this entry and all below it, in order."""
        yield self
        for child in self.children:
            yield from child.walk()


class Places(NamedTuple):
    """The paths at which modules are listed."""

    shared: Mapping[str, str] = {}
    """A path of a module that is met again -> its first one."""
    known: Collection[str] = ()

    def of(self, path: str) -> str:
        """The listed path that ``path`` belongs to; empty for what belongs to the whole.

        A path through a shared module leads to where it lies, an unknown one to the nearest module
        around it.
        """
        head = path
        while head:
            if head in self.shared:
                return self.of(self.shared[head] + path[len(head) :])
            head = head.rpartition(".")[0]
        while path and path not in self.known:
            path = path.rpartition(".")[0]
        return path


class ModuleForest:
    """The modules of a Graph. A module or tensor met several times is listed at its first path."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self.roots: list[ModuleEntry] = []
        self.entries: dict[str, ModuleEntry] = {}
        self._shared: dict[str, str] = {}
        self._modules: dict[int, str] = {}
        self._tensors: dict[int, str] = {}
        for name, module in modules.items():
            self._add(name, module, self.roots)

    def _add(self, path: str, module: nn.Module, siblings: list[ModuleEntry]) -> None:
        entry = ModuleEntry(path, module, self._modules.get(id(module), ""))
        siblings.append(entry)
        if entry.shared_with:
            self._shared[path] = entry.shared_with
            return
        self._modules[id(module)] = path
        self.entries[path] = entry
        if not issubclass(type(module), nn.Module):  # a mock, which passes for one
            return
        # Not by its own methods, which may be the user's.
        entry.parameters = self._tensor_entries(path, parameters_of(module))
        entry.buffers = self._tensor_entries(path, buffers_of(module))
        for name, child in children_of(module).items():
            if child is not None:
                self._add(f"{path}.{name}", child, entry.children)

    def _tensor_entries(self, path: str, held: Mapping[str, Any]) -> list[TensorEntry]:
        entries = []
        for name, tensor in held.items():
            if tensor is None:
                continue
            here = f"{path}.{name}"
            first = self._tensors.setdefault(id(tensor), here)
            entries.append(TensorEntry(here, tensor, "" if first == here else first))
        return entries

    @property
    def places(self) -> Places:
        """The paths alone, without modules."""
        return Places(self._shared, frozenset(self.entries))

    def place(self, path: str) -> str:
        """The entry that ``path`` belongs to; empty for what belongs to the Graph as a whole."""
        return Places(self._shared, self.entries).of(path)
