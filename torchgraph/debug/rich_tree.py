"""The tree of a Graph in colour: shapes, parameters and op nodes per module, in aligned columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from ..ir.program import CallRecord, Phase, TensorMeta
from .modules import ModuleEntry, ModuleForest, TensorEntry
from .operators import DescribedLeaf, phase_counts
from .tree import TreeSource

_PHASES = {Phase.FORWARD: "fwd", Phase.BACKWARD: "bwd", Phase.UPDATE: "upd"}
_ROWS = 300
"""Modules that are shown before the rest is only counted."""
_UNITS = ((1e9, "B"), (1e6, "M"), (1e3, "K"))


def rich_tree(source: TreeSource) -> Tree:
    """The tree, to be printed by rich: fits 80 columns.

    ``own`` counts the parameters of the module itself, all other columns its sub-modules, too;
    ``fwd``, ``bwd`` and ``upd`` are the op nodes of forward, backward and optimizer step.
    """
    return _Painter(source).tree()


class _Painter:
    def __init__(self, source: TreeSource) -> None:
        self.source = source
        self.forest = ModuleForest(source.modules)
        self.calls: dict[str, list[CallRecord]] = {}
        self.counts: dict[str, Counter[Phase]] = {}
        self._left = _ROWS
        if source.program is not None:
            self.counts = phase_counts(source.program, self.forest.place)
            for call in source.calls:
                self.calls.setdefault(self.forest.place(call.module), []).append(call)

    def tree(self) -> Tree:
        source = self.source
        title = Text(source.graph_name, "bold green")
        title.append(f" {source.class_name}", "magenta")
        total = sum(entry.own for root in self.forest.roots for entry in root.walk())
        everything = sum(self.counts.values(), Counter[Phase]())
        head = self._row(title, ("own", "params"), _PHASES.values(), style="dim")
        config = Text(source.config_repr, "dim")
        whole = self._row(config, ("", _number(total)), self._nodes(everything))
        tree = Tree(Group(head, whole), guide_style="dim")
        if self.calls or source.inputs:
            tree.add(_leaves("in", source.inputs, "cyan"))
        self._add_all(tree, self.forest.roots)
        outside = self.counts.get("", Counter[Phase]())
        if outside:
            tree.add(self._row(Text("(no module)", "dim"), ("", ""), self._nodes(outside)))
        if source.outputs and source.program is not None:
            tree.add(_leaves("out", source.outputs, "green"))
        return tree

    def _add_all(self, parent: Tree, entries: Sequence[ModuleEntry]) -> None:
        for number, entry in enumerate(entries):
            if self._left <= 0:
                rest = sum(1 for left in entries[number:] for _ in left.walk())
                parent.add(Text(f"… {rest:,} more modules", "dim"))
                return
            self._left -= 1
            self._add(parent, entry)

    def _add(self, parent: Tree, entry: ModuleEntry) -> None:
        label = Text(entry.name, "bold")
        label.append(f" {type(entry.module).__name__}", "magenta")
        if entry.shared_with:
            label.append(f" is {entry.shared_with}", "dim italic")
            parent.add(self._row(label, ("", ""), ()))
            return
        label.append(entry.shallow.removeprefix(type(entry.module).__name__), "dim")
        below = list(entry.walk())
        nodes = sum((self.counts.get(e.path, Counter[Phase]()) for e in below), Counter[Phase]())
        own, total = entry.own, sum(e.own for e in below)
        row = self._row(label, (_number(own), _number(total)), self._nodes(nodes))
        detail = self._detail(entry)
        branch = parent.add(Group(row, detail) if detail.plain else row)
        self._add_all(branch, entry.children)

    def _detail(self, entry: ModuleEntry) -> Text:
        parts = []
        calls = self.calls.get(entry.path, [])
        if calls:
            shapes = Text(_shapes(calls[0].inputs), "cyan")
            shapes.append(" -> ", "dim").append(_shapes(calls[0].outputs), "green")
            if len(calls) > 1:
                shapes.append(f" ({len(calls)} calls)", "dim")
            parts.append(shapes)
        parts += [_tensor(found, "yellow") for found in entry.parameters]
        parts += [_tensor(found, "blue") for found in entry.buffers]
        return Text("  ").join(parts)

    def _nodes(self, counts: Counter[Phase]) -> list[str]:
        return [str(counts[phase]) if counts[phase] else "-" for phase in _PHASES]

    def _row(
        self, label: Text, sizes: Iterable[str], nodes: Iterable[str], style: str = ""
    ) -> RenderableType:
        label.no_wrap, label.overflow = True, "ellipsis"
        row = Table.grid(padding=(0, 0, 0, 1), expand=True)
        row.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        cells = [Text(cell, style or _shade(cell, "yellow")) for cell in sizes]
        if self.source.program is not None:
            cells += [Text(cell, style or _shade(cell, "cyan")) for cell in nodes]
        for position, _ in enumerate(cells):
            row.add_column(width=7 if position < 2 else 6, justify="right", no_wrap=True)
        row.add_row(label, *cells)
        return row


def _shade(cell: str, style: str) -> str:
    return "dim" if cell == "-" else style


def _leaves(tag: str, leaves: Sequence[DescribedLeaf], style: str) -> Text:
    return Text(f"{tag} ", "bold").append(_shapes(leaves), style)


def _shapes(leaves: Sequence[DescribedLeaf]) -> str:
    return ", ".join(leaf if isinstance(leaf, str) else _shape(leaf) for _, leaf in leaves) or "()"


def _shape(meta: TensorMeta) -> str:
    dtype = "" if meta.dtype is torch.float32 else str(meta.dtype).removeprefix("torch.")
    return f"{dtype}[{','.join(map(str, meta.shape))}]"


def _tensor(entry: TensorEntry, style: str) -> Text:
    text = Text(entry.path.rpartition(".")[2], style)
    if entry.shared_with:
        return text.append(f" is {entry.shared_with}", "dim italic")
    shape = _shape(entry.meta) if entry.meta else "uninitialized"
    # No blank before the shape: lines break at blanks.
    return text.append(shape if shape.startswith("[") else f":{shape}", "dim")


def _number(count: int) -> str:
    if not count:
        return "-"
    for size, unit in _UNITS:
        if count >= 100 * size or (count >= size and unit != "K"):
            scaled = count / size
            return f"{scaled:.{max(0, 3 - len(str(int(scaled))))}f}{unit}"
    return f"{count:,}"
