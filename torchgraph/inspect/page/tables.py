"""The tables of a page that a terminal has in fewer rows or columns, and their form in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...costs.owners import own_module
from ...debug.units import size
from ...errors import SourceLine
from ...ir.program import provenance
from ..baked import Baked, BakedKind
from ..facts import Branch, Guard, Predicate, Programs
from ..recomputation import Recomputation
from ..tables import Cell, Table
from .memory import OverTime


def in_json(table: Table) -> dict[str, Any]:
    """A table as the script of a page takes it, with all of its rows."""
    notes = table.notes if table.rows or not table.empty else [table.empty]
    return {
        "title": table.title,
        "columns": [name.lstrip(">…") for name in table.columns],
        "rows": [list(map(_in_json, row)) for row in table.rows],
        "notes": list(map(str, notes)),
    }


def _in_json(cell: Cell) -> str | tuple[str, str, str]:
    """Text, or a place: ``("model.py:12", "return self.head(x)", "/home/me/model.py")``."""
    if isinstance(cell, SourceLine):
        return cell.place, cell.text, cell.filename
    return str(cell or "")


def at_peak(found: OverTime) -> Table:
    """The largest values that are alive at the peak."""
    rows = [
        (
            str(value.node.name),
            size(value.nbytes),
            provenance(value.node).phase.value,
            own_module(value.node),
            provenance(value.node).line,
        )
        for value in found.at_peak
    ]
    columns = ("allocated by", "bytes", "phase", "module", "where")
    return Table("Alive at the peak, the largest first", columns, rows)


def recomputed(found: Sequence[Recomputation]) -> Table:
    """Savings and costs of activation checkpointing."""
    columns = ("region", "kept without", "kept with", "ops repeated", "ms")
    rows = [
        (
            one.name,
            size(one.kept_before),
            size(one.kept_after),
            str(one.nodes),
            f"{1e3 * one.seconds:.3g}",
        )
        for one in found
    ]
    return Table("Activation checkpointing", columns, rows)


def guards(found: Sequence[Guard], moving: Sequence[str], checked: str) -> Table:
    """Guarded attributes, each in a row of its own."""
    notes = ["And modules, parameters, buffers, hooks and param groups themselves."]
    if moving:
        notes.append(f"Free to move: {', '.join(moving)}.")
    notes.append(f"{checked[0].upper()}{checked[1:]}.")
    rows = [(one.name, one.value) for one in found]
    return Table("A change of these needs another program", ("name", "value"), rows, notes)


def predicates(found: Sequence[Predicate]) -> Table:
    """Values of tensors that Python read."""
    rows = [(one.expected, str(one.count), one.line) for one in found]
    title = "Values that Python read: another one needs another program"
    return Table(title, ("value", "times", "where"), rows)


def branches(found: Sequence[Branch]) -> Table:
    """Decisions on numbers of the optimizers, with their lines."""
    rows = [(one.condition, one.taken, str(one.count), one.line) for one in found]
    return Table("Branches on numbers that move", ("condition", "was", "times", "where"), rows)


def baked(found: Sequence[Baked]) -> Table:
    """Values that are part of the program now, each with all of its ops."""
    rows = [
        (
            f"{one.name}={one.value}" if one.kind is BakedKind.NUMBER else one.value,
            ", ".join(one.ops) or "the call",
            str(one.count),
            one.name if one.kind is BakedKind.ARGUMENT else one.line,
        )
        for one in found
    ]
    title = "Baked in: part of the program, no longer read"
    return Table(title, ("value", "in", "times", "from"), rows)


def programs(cache: Programs) -> Table:
    """The programs that are held: the variants of the step."""
    title = f"Programs: {len(cache.held)} of at most {cache.size} held"
    rows = [
        (
            f"{held.signature}; {held.told}" if held.told else held.signature,
            str(held.nodes),
            str(held.runs),
            "" if held.inductor_since is None else str(held.runs - held.inductor_since),
            size(held.nbytes),
            "" if held.peak is None else size(held.peak),
            "this page" if held.reported else "",
        )
        for held in cache.held
    ]
    columns = ("serves", "nodes", "runs", "of them compiled", "holds", "peak", "")
    notes = [f"Hits: {cache.hits}, misses: {cache.captures}, each a capture."]
    notes += [f"Captured anew: {reason}." for reason in dict.fromkeys(cache.reasons)]
    return Table(title, columns, rows, notes)
