"""``print(graph)``: the modules of a Graph, their tensors and operators, in OneFlow's format."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..ir.program import CallRecord, Phase, Program
from .modules import ModuleEntry, ModuleForest, TensorEntry
from .operators import DescribedLeaf, OperatorLines, StackOf, io_names, no_stack

DescribedLeaves = tuple[DescribedLeaf, ...]


@dataclass(frozen=True)
class TreeSource:
    """The data shown of a Graph. Before the first call, ``program`` is None."""

    graph_name: str
    """``LinearGraph_0``."""
    class_name: str
    config_repr: str
    modules: Mapping[str, nn.Module]
    checkpointing: Mapping[str, bool] = field(default_factory=dict)
    """The checkpointing setting of modules by path: whether activations are recomputed."""
    stages: Mapping[str, tuple[int, Any]] = field(default_factory=dict)
    """Likewise: in which pipeline stage they are, and where that is."""
    program: Program | None = None
    calls: Sequence[CallRecord] = ()
    inputs: Sequence[DescribedLeaf] = ()
    """Arguments by their path in (args, kwargs): ``0.0`` the first, ``1.mask`` a keyword."""
    outputs: Sequence[DescribedLeaf] = ()
    """The values that build returns: ``0.0`` is the only one, or the first of a tuple."""
    stack: StackOf = no_stack
    """The depth of the stack that the operators of a module show."""
    captured: Program | None = None
    """The program before its passes."""
    seconds: Mapping[str, float] | None = None
    """Time by node of ``program``, where it was measured."""
    besides: Mapping[tuple[str, Phase], float] | None = None
    """Like ``seconds``, for nodes that lowering made, by module and phase."""
    amp: torch.dtype | None = None
    """The dtype of mixed precision; None without it."""
    eager: str = ""
    """Why no program serves the Graph's calls; empty where one does, or may come."""


LINES = 2000
"""The number of lines after which the rest of a text is only counted."""
_CUT = "… graph.full_text() has all lines, print(graph.model.layer) those of a part"


def text(source: TreeSource, limit: int | None = LINES) -> str:
    """The whole Graph: CONFIG, INPUTs, MODULEs, OPERATORs of no module, OUTPUTs.

    Args:
        limit: lines before modules and operators are only counted; None: all are shown.
    """
    view = _View(source, limit)
    lines = [source.config_repr]
    if source.eager:
        lines.append(f"[WARNING]{_shallow(source)} runs in eager: {source.eager}")
    lines += view.io("INPUT", source.graph_name, source.inputs)
    lines += view.modules(view.forest.roots)
    lines += view.operators_of("")
    lines += view.io("OUTPUT", source.graph_name, source.outputs)
    return view.joined(_nested(_shallow(source), lines))


def module_text(source: TreeSource, path: str) -> str:
    """The part of the tree below the module at ``path``; KeyError when there is none."""
    view = _View(source, LINES)
    return view.joined(view.module(view.forest.entries[view.forest.place(path)]))


def block_text(source: TreeSource, path: str) -> str:
    """The OPERATORs of the module at ``path``, as a ``(GraphModule:...)`` item."""
    view = _View(source, LINES)
    return view.joined(view.block(view.forest.place(path)))


class CallLines:
    """The lines of a module, before and after it runs: MODULE, INPUTs, its tensors; OUTPUTs."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._forest = ModuleForest(modules)
        # Asked for now: while a step is recorded, what a module reads of itself is the step's.
        self._shallow = {path: entry.shallow for path, entry in self._forest.entries.items()}
        self._begun: set[tuple[str, DescribedLeaves]] = set()

    def of(self, path: str, tag: str, leaves: DescribedLeaves) -> Iterator[str]:
        """The lines for the beginning or the end of a call of the module at ``path``.

        Calls with equal inputs, or equal outputs, are listed once.
        """
        entry = self._forest.entries.get(self._forest.place(path))
        if entry is None or (f"{tag}:{path}", leaves) in self._begun:
            return
        self._begun.add((f"{tag}:{path}", leaves))
        if tag == "INPUT":
            yield f"(MODULE:{entry.path}:{self._shallow[entry.path]})"
        yield from io_lines(tag, entry.path, leaves)
        if tag == "INPUT":
            yield from _tensor_lines(entry)


def _shallow(source: TreeSource) -> str:
    return f"(GRAPH:{source.graph_name}:{source.class_name})"


def _nested(head: str, lines: Sequence[str]) -> list[str]:
    if not lines:
        return [f"{head}: ()"]
    return [f"{head}: (", *(f"  {line}" for line in lines), ")"]


def _tensor(tag: str, entry: TensorEntry) -> str:
    meta = entry.meta or "tensor(<uninitialized>)"
    shared = f", shared with {entry.shared_with}" if entry.shared_with else ""
    return f"({tag}:{entry.path}:{meta}{shared})"


def _tensor_lines(entry: ModuleEntry) -> list[str]:
    lines = [_tensor("PARAMETER", found) for found in entry.parameters]
    return lines + [_tensor("BUFFER", found) for found in entry.buffers]


def io_lines(tag: str, scope: str, leaves: Sequence[DescribedLeaf]) -> list[str]:
    """``(INPUT:_scope_input.0.0_2:tensor(...))``, or OUTPUT."""
    names = io_names(scope, tag.lower(), leaves)
    return [f"({tag}:{name}:{leaf})" for name, (_, leaf) in zip(names, leaves, strict=True)]


class _View:
    """The parts of a source, looked up once for one rendering."""

    def __init__(self, source: TreeSource, limit: int | None) -> None:
        self._left = math.inf if limit is None else limit
        """Lines that may still be shown."""
        self._is_cut = False
        self.forest = ModuleForest(source.modules)
        self.known = source.program is not None
        self.checkpointing, self.stages = source.checkpointing, source.stages
        self._operators: defaultdict[str, list[str]] = defaultdict(list)
        self.calls: defaultdict[str, dict[CallRecord, None]] = defaultdict(dict)
        if source.program is None:
            return
        for call in source.calls:  # calls of one module with equal tensors are shown once
            place = self.forest.place(call.module)
            if place:
                self.calls[place][CallRecord(place, call.inputs, call.outputs)] = None
        self._operators = OperatorLines(
            source.program,
            self.forest.place,
            tensor_names(source.graph_name, "input", source.inputs),
            tensor_names(source.graph_name, "output", source.outputs),
            source.stack,
        ).lines

    def io(self, tag: str, scope: str, leaves: Sequence[DescribedLeaf]) -> list[str]:
        return io_lines(tag, scope, leaves) if self.known else []

    def joined(self, lines: Sequence[str]) -> str:
        """The text of some lines, with a way to see the rest where they are not all."""
        return "\n".join([*lines, _CUT] if self._is_cut else lines)

    def modules(self, entries: Sequence[ModuleEntry]) -> list[str]:
        lines: list[str] = []
        for number, entry in enumerate(entries):
            if self._left <= 0:
                self._is_cut = True
                rest = sum(1 for left in entries[number:] for _ in left.walk())
                return [*lines, f"… {rest:,} more modules"]
            lines += self.module(entry)
        return lines

    def operators_of(self, path: str) -> list[str]:
        lines = self._operators[path]
        shown = lines[: max(0, int(min(self._left, len(lines))))]
        self._left -= len(shown)
        if len(shown) == len(lines):
            return lines
        self._is_cut = True
        return [*shown, f"… {len(lines) - len(shown):,} more operators"]

    def module(self, entry: ModuleEntry) -> list[str]:
        head = f"(MODULE:{entry.path}:{entry.shallow}"
        if entry.shared_with:
            self._left -= 1
            return [f"{head}, shared with {entry.shared_with}): ()"]
        lines = self._inputs(entry)
        lines += [f"{line}: ()" for line in _tensor_lines(entry)]
        self._left -= len(lines) + 4  # its own two, and those around its operators
        lines += self.modules(entry.children)
        lines += self._outputs(entry)
        lines += self.block(entry.path)
        return _nested(f"{head})", lines)

    def block(self, path: str) -> list[str]:
        setting, (stage, _) = self.checkpointing.get(path), self.stages.get(path, (None, None))
        said = "" if stage is None else f"stage_id={stage}, "
        said += "" if setting is None else f"activation_checkpointing={setting}, "
        return _nested(f"(GraphModule:{path}({said}))", self.operators_of(path))

    def _inputs(self, entry: ModuleEntry) -> list[str]:
        calls = self.calls.get(entry.path, ())
        return [line for call in calls for line in self.io("INPUT", entry.path, call.inputs)]

    def _outputs(self, entry: ModuleEntry) -> list[str]:
        calls = self.calls.get(entry.path, ())
        return [line for call in calls for line in self.io("OUTPUT", entry.path, call.outputs)]


def tensor_names(scope: str, kind: str, leaves: Sequence[DescribedLeaf]) -> list[str]:
    """Names of the tensors among the leaves: other values are no inputs of the program."""
    names = io_names(scope, kind, leaves)
    return [
        name for name, (_, leaf) in zip(names, leaves, strict=True) if not isinstance(leaf, str)
    ]
