"""``print(graph)``: the modules of a Graph, their tensors and operators, in OneFlow's format."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from ..ir.program import CallRecord, Program
from .modules import ModuleEntry, ModuleForest, TensorEntry
from .operators import DescribedLeaf, OperatorLines, io_names


@dataclass(frozen=True)
class TreeSource:
    """What there is to show of a Graph. Before the first call, ``program`` is None."""

    graph_name: str
    """``LinearGraph_0``."""
    class_name: str
    config_repr: str
    modules: Mapping[str, nn.Module]
    checkpointing: Mapping[str, bool] = field(default_factory=dict)
    """What was said of modules by path: whether their activations are recomputed."""
    program: Program | None = None
    calls: Sequence[CallRecord] = ()
    inputs: Sequence[DescribedLeaf] = ()
    """Arguments by their path in (args, kwargs): ``0.0`` the first, ``1.mask`` a keyword."""
    outputs: Sequence[DescribedLeaf] = ()
    """What build returns: ``0.0`` is the only value, or the first of a tuple."""
    locations: bool = False
    """Show the user's lines of each operator."""
    stack_depth: int = 2


def text(source: TreeSource) -> str:
    """The whole Graph: CONFIG, INPUTs, MODULEs, OPERATORs of no module, OUTPUTs."""
    view = _View(source)
    lines = [source.config_repr]
    lines += view.io("INPUT", source.graph_name, source.inputs)
    for root in view.forest.roots:
        lines += view.module(root)
    lines += view.operators[""]
    lines += view.io("OUTPUT", source.graph_name, source.outputs)
    return "\n".join(_nested(_shallow(source), lines))


def module_text(source: TreeSource, path: str) -> str:
    """The part of the tree below the module at ``path``; KeyError when there is none."""
    view = _View(source)
    return "\n".join(view.module(view.forest.entries[view.forest.place(path)]))


def block_text(source: TreeSource, path: str) -> str:
    """The OPERATORs of the module at ``path``, as a ``(GraphModule:...)`` item."""
    view = _View(source)
    return "\n".join(view.block(view.forest.place(path)))


def called_lines(entry: ModuleEntry, call: CallRecord) -> list[str]:
    """What ``debug(1)`` prints where a module is called: its name, inputs and tensors."""
    head = f"(MODULE:{entry.path}:{entry.shallow})"
    return [head, *leaf_lines("INPUT", entry.path, call.inputs), *_tensors(entry)]


def leaf_lines(tag: str, scope: str, leaves: Sequence[DescribedLeaf]) -> list[str]:
    """The lines of the INPUTs or OUTPUTs of a Graph or a module."""
    names = io_names(scope, tag.lower(), leaves)
    return [f"({tag}:{name}:{leaf})" for name, (_, leaf) in zip(names, leaves, strict=True)]


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


def _tensors(entry: ModuleEntry) -> list[str]:
    lines = [_tensor("PARAMETER", found) for found in entry.parameters]
    return lines + [_tensor("BUFFER", found) for found in entry.buffers]


class _View:
    """The parts of a source, looked up once for one rendering."""

    def __init__(self, source: TreeSource) -> None:
        self.forest = ModuleForest(source.modules)
        self.known = source.program is not None
        self.checkpointing = source.checkpointing
        self.operators: defaultdict[str, list[str]] = defaultdict(list)
        self.calls: defaultdict[str, dict[CallRecord, None]] = defaultdict(dict)
        if source.program is None:
            return
        for call in source.calls:  # calls of one module with equal tensors are shown once
            place = self.forest.place(call.module)
            if place:
                self.calls[place][CallRecord(place, call.inputs, call.outputs)] = None
        self.operators = OperatorLines(
            source.program,
            self.forest.place,
            _tensor_names(source, "input", source.inputs),
            _tensor_names(source, "output", source.outputs),
            source.stack_depth if source.locations else None,
        ).lines

    def io(self, tag: str, scope: str, leaves: Sequence[DescribedLeaf]) -> list[str]:
        return leaf_lines(tag, scope, leaves) if self.known else []

    def module(self, entry: ModuleEntry) -> list[str]:
        head = f"(MODULE:{entry.path}:{entry.shallow}"
        if entry.shared_with:
            return [f"{head}, shared with {entry.shared_with}): ()"]
        lines = self._inputs(entry)
        lines += [f"{line}: ()" for line in _tensors(entry)]
        for child in entry.children:
            lines += self.module(child)
        lines += self._outputs(entry)
        lines += self.block(entry.path)
        return _nested(f"{head})", lines)

    def block(self, path: str) -> list[str]:
        setting = self.checkpointing.get(path)
        said = "" if setting is None else f"activation_checkpointing={setting}, "
        return _nested(f"(GraphModule:{path}({said}))", self.operators[path])

    def _inputs(self, entry: ModuleEntry) -> list[str]:
        calls = self.calls.get(entry.path, ())
        return [line for call in calls for line in self.io("INPUT", entry.path, call.inputs)]

    def _outputs(self, entry: ModuleEntry) -> list[str]:
        calls = self.calls.get(entry.path, ())
        return [line for call in calls for line in self.io("OUTPUT", entry.path, call.outputs)]


def _tensor_names(source: TreeSource, kind: str, leaves: Sequence[DescribedLeaf]) -> list[str]:
    """Names of the tensors among the leaves: other values are no inputs of the program."""
    names = io_names(source.graph_name, kind, leaves)
    return [
        name for name, (_, leaf) in zip(names, leaves, strict=True) if not isinstance(leaf, str)
    ]
