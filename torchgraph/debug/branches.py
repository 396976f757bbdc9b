"""The rich tree as plain data: for each module its words and, by phase, its figures."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from ..ir.program import CallRecord, Phase, Program, TensorMeta
from .figures import Totals, sum_of, totals_of
from .modules import ModuleEntry, ModuleForest, TensorEntry
from .operators import DescribedLeaf
from .tree import TreeSource
from .units import BYTES, COUNTS, Units

PHASES = {Phase.FORWARD: "fwd", Phase.BACKWARD: "bwd", Phase.UPDATE: "upd"}
_NONE = type(None).__name__
_NAMES = {_NONE: "None"}
_ROWS = 300
"""Modules that are shown before the rest is only counted."""
_ELEMENTS = Units(("", "K", "M", "B", "T"))


class Piece(NamedTuple):
    """Text that is not broken, in a style of rich."""

    text: str
    style: str = ""
    glued: bool = False
    """No blank before it."""
    begins: bool = False
    """A line begins with it, and what does not fit on that goes on below it, indented."""


@dataclass
class Branch:
    """A node of the tree: a module, or a line in place of one."""

    label: list[Piece]
    details: list[Piece] = field(default_factory=list)
    """Lines below the label, broken between pieces where they are too long."""
    cells: dict[str, list[str]] = field(default_factory=dict)
    """By column: first those of the label's line, then of the lines below."""
    children: list[Branch] = field(default_factory=list)

    def walk(self) -> Iterator[Branch]:
        """Yield this branch and all below it, in order."""
        yield self
        for child in self.children:
            yield from child.walk()


def root_of(source: TreeSource, depth: int | None = None) -> Branch:
    """The whole Graph.

    Args:
        depth: levels of modules to show; what lies deeper counts with the module around it.
    """
    return _Grower(source, depth).root()


class _Grower:
    def __init__(self, source: TreeSource, depth: int | None) -> None:
        self._source, self._depth = source, depth
        self._forest = forest = ModuleForest(source.modules)
        self._calls: defaultdict[str, list[CallRecord]] = defaultdict(list)
        self._totals: dict[str, Totals] = {}
        self._left = _ROWS
        self._device = _most(entry.meta for entry in _tensors(forest))
        program = source.program
        if program is not None:
            self._device = _most(spec.meta for spec in program.signature.inputs)
            given = (source.captured, source.seconds, forest, source.besides)
            self._totals = totals_of(program, *given)
            for call in source.calls:
                self._calls[forest.place(call.module)].append(call)
        times = (*(source.seconds or {}).values(), *(source.besides or {}).values())
        self._seconds = sum(times)

    def root(self) -> Branch:
        source, program = self._source, self._source.program
        label = [Piece(source.graph_name, "bold green"), Piece(source.class_name, "magenta")]
        root = Branch(label, [Piece(part, "dim") for part in _config(source.config_repr)])
        root.details.append(Piece(f"float32 on {self._device} unless said", "dim", begins=True))
        if source.amp is not None:
            root.details.append(Piece(f"amp in {str(source.amp).removeprefix('torch.')}", "bold"))
        if source.eager:
            root.details.append(Piece("runs in eager:", "bold red", begins=True))
            root.details += [Piece(word, "bold red") for word in source.eager.split()]
        total = sum(entry.own for each in self._forest.roots for entry in each.walk())
        root.cells = self._cells(sum_of(self._totals.values()), 0, total)
        if program is not None:
            root.details += self._of_step(program)
            if source.inputs:
                shapes = self._shapes(_without_last_nones(source.inputs))
                root.children.append(Branch([Piece("in", "bold"), *shapes]))
        root.children += self._branches(self._forest.roots, 1)
        if "" in self._totals:
            outside = self._totals[""]
            made = self._passes(outside)
            root.children.append(
                Branch([Piece("(no module)", "dim")], made, self._cells(outside, 0, 0))
            )
        if program is not None and source.outputs:
            shapes = self._shapes(source.outputs)
            root.children.append(Branch([Piece("out", "bold"), *shapes]))
        return root

    def _of_step(self, program: Program) -> list[Piece]:
        found: list[Piece] = []
        if program.signature.micro_batches > 1:
            found.append(Piece(f"{program.signature.micro_batches} micro-batches", "dim"))
        if self._seconds:
            found.append(Piece(f"{1e3 * self._seconds:.3g} ms measured", "bold"))
        for record in program.history:
            if record.edits:
                edits = "1 edit" if record.edits == 1 else f"{record.edits:,} edits"
                found.append(Piece(f"{record.name}: {edits}", "green"))
        return [found[0]._replace(begins=True), *found[1:]] if found else found

    def _branches(self, entries: Sequence[ModuleEntry], level: int) -> list[Branch]:
        found: list[Branch] = []
        for number, entry in enumerate(entries):
            if self._left <= 0:
                rest = sum(1 for left in entries[number:] for _ in left.walk())
                found.append(Branch([Piece(f"… {rest:,} more modules", "dim")]))
                break
            self._left -= 1
            found.append(self._branch(entry, level))
        return found

    def _branch(self, entry: ModuleEntry, level: int) -> Branch:
        kind = type(entry.module).__name__
        label = [Piece(entry.name, "bold"), Piece(kind, "magenta")]
        if entry.shared_with:
            return Branch([*label, Piece(f"is {entry.shared_with}", "dim italic")])
        if extra := entry.shallow.removeprefix(kind).removeprefix("()"):
            label.append(Piece(extra, "dim", glued=True))
        below = list(entry.walk())
        totals = sum_of(self._totals[one.path] for one in below if one.path in self._totals)
        cells = self._cells(totals, entry.own, sum(one.own for one in below))
        branch = Branch(label, self._details(entry), cells)
        if self._depth is not None and level >= self._depth:
            branch.details += self._passes(totals)
            if len(below) > 1:
                words = f"… {len(below) - 1:,} modules in it"
                branch.details.append(Piece(words, "dim", begins=True))
        else:
            branch.details += self._passes(self._totals.get(entry.path, Totals()))
            branch.children = self._branches(entry.children, level + 1)
        return branch

    def _details(self, entry: ModuleEntry) -> list[Piece]:
        parts: list[Piece] = []
        calls = self._calls.get(entry.path, [])
        if calls:
            parts += self._shapes(_without_last_nones(calls[0].inputs))
            parts.append(Piece("->", "dim"))
            parts += self._shapes(calls[0].outputs, "green")
            if len(calls) > 1:
                parts.append(Piece(f"({len(calls)} calls)", "dim"))
        parts += [self._tensor(found, "yellow") for found in entry.parameters]
        buffers = [self._tensor(found, "blue") for found in entry.buffers]
        if buffers:
            parts.append(Piece("buffers:", "blue", begins=True))
        return parts + buffers

    def _tensor(self, entry: TensorEntry, style: str) -> Piece:
        name = entry.path.rpartition(".")[2]
        if entry.shared_with:
            return Piece(f"{name} is {entry.shared_with}", "dim italic")
        shape = self._shape(entry.meta) if entry.meta else "uninitialized"
        return Piece(name + (shape if shape.startswith("[") else f":{shape}"), style)

    def _shapes(self, leaves: Sequence[DescribedLeaf], style: str = "cyan") -> list[Piece]:
        shapes = [
            _NAMES.get(leaf, leaf) if isinstance(leaf, str) else self._shape(leaf)
            for _, leaf in leaves
        ]
        return [Piece(shape, style) for shape in shapes or ["()"]]

    def _shape(self, meta: TensorMeta) -> str:
        dtype = "" if meta.dtype is torch.float32 else str(meta.dtype).removeprefix("torch.")
        device = "" if str(meta.device) == self._device else f"@{meta.device}"
        return f"{dtype}[{','.join(map(str, meta.shape))}]{device}"

    def _passes(self, totals: Totals) -> list[Piece]:
        """The nodes that passes made, and the number of nodes before and after them."""
        parts: list[Piece] = []
        last = ""
        for (name, op), count in sorted(totals.made.items()):
            if name != last:
                parts.append(Piece(f"{name}:", "green", begins=True))
            parts.append(Piece(op + (f" x{count}" if count > 1 else ""), "green"))
            last = name
        before = totals.captured
        if before != totals.nodes and self._source.captured is not None:
            words = f"({before:,} nodes, now {totals.nodes:,})"
            parts.append(Piece(words, "green", begins=True))
        return parts

    def _cells(self, totals: Totals, own: int, total: int) -> dict[str, list[str]]:
        cells = {"own": [_number(own, _ELEMENTS)], "params": [_number(total, _ELEMENTS)]}
        for phase, name in PHASES.items():
            found = totals.phases.get(phase)
            if found is None:
                continue
            share = found.seconds / self._seconds if self._seconds else 0.0
            row = {
                "phase": name,
                "ops": _number(found.ops, _ELEMENTS),
                "FLOPs": _number(found.flops, COUNTS),
                "moved": _number(found.moved, BYTES),
                "kept": _number(found.kept, BYTES),
                "time": f"{share:.1%}" if share else "-",
            }
            for column, cell in row.items():
                cells.setdefault(column, []).append(cell)
        return cells


def _without_last_nones(leaves: Sequence[DescribedLeaf]) -> Sequence[DescribedLeaf]:
    """The arguments without trailing Nones: most are defaults."""
    end = len(leaves)
    while end and leaves[end - 1][1] == _NONE:
        end -= 1
    return leaves[:end]


def _tensors(forest: ModuleForest) -> Iterator[TensorEntry]:
    for entry in forest.entries.values():
        yield from (*entry.parameters, *entry.buffers)


def _most(found: Iterable[TensorMeta | None]) -> str:
    """The most frequent device; ``cpu`` where there is none."""
    devices = Counter(str(meta.device) for meta in found if meta is not None)
    return devices.most_common(1)[0][0] if devices else "cpu"


def _config(config_repr: str) -> list[str]:
    """``training=True`` and so on, one by one."""
    inside = config_repr.removeprefix("(CONFIG:config:GraphConfig(").rstrip("), ")
    return inside.split(", ")


def _number(count: int, units: Units) -> str:
    """In three digits and a unit; ``27,584`` where that is as short; ``-`` for none."""
    if not count:
        return "-"
    if units is _ELEMENTS and count < 100_000:
        return f"{count:,}"
    scaled, unit = units.scaled(count, reached=0.9995)
    places = 0 if scaled == count else max(0, 3 - len(str(int(scaled))))
    return f"{scaled:.{places}f}{unit}"
