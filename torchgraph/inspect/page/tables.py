"""The tables of a page, with all of their rows. Each has a twin among the tables of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.program import PassRecord, Refusal
from ...replay.cuda.graphs import NOT_LOOKED_AT
from ..baked import Baked, BakedKind
from ..facts import Branch, CallCounts, Guard, PhaseCount, Predicate, ProgramMemory, Programs
from ..pipelining import COLUMNS, Pipeline, cells, title
from ..precision import Precision
from ..recomputation import Recomputation
from ..tables import size
from .memory import OverTime
from .places import Cell, where


@dataclass(frozen=True)
class Table:
    """Rows under columns. Without rows its notes are shown, or nothing."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()


def nodes(rows: Sequence[PhaseCount]) -> Table:
    """Op nodes by phase."""
    cells = [
        (row.phase.value, str(row.captured), str(row.after_passes), str(row.in_place))
        for row in rows
    ]
    return Table("Nodes", ("phase", "captured", "after passes", "in place"), cells)


def memory(sizes: ProgramMemory) -> Table:
    """Bytes that a program reads, by kind."""
    kinds = ("parameters", "buffers", "slots", "derived", "constants", "inputs")
    cells = [
        ("optimizer slots" if kind == "slots" else kind, size(getattr(sizes, kind)))
        for kind in kinds
    ]
    return Table("Memory that is there before a step", ("held by", "bytes"), cells)


def at_peak(found: OverTime) -> Table:
    """The largest values that are alive at the peak."""
    rows = [(name, size(int(str(count))), *rest) for name, count, *rest in found.at_peak]
    columns = ("allocated by", "bytes", "phase", "module", "where")
    return Table("Alive at the peak, the largest first", columns, rows)


def precision(rows: Sequence[Precision]) -> Table:
    """Ops by dtype, where there is more than one."""
    cells = [
        (
            str(row.dtype).removeprefix("torch."),
            row.phase.value,
            ", ".join(f"{name} x{count}" if count > 1 else name for name, count in row.ops),
        )
        for row in rows
    ]
    return Table("Precision", ("type", "phase", "ops"), cells)


def recomputed(rows: Sequence[Recomputation]) -> Table:
    """Savings and costs of activation checkpointing."""
    columns = ("region", "kept without", "kept with", "ops repeated", "ms")
    cells = [
        (one.name, size(one.kept_before), size(one.kept_after), str(one.nodes), _ms(one.seconds))
        for one in rows
    ]
    return Table("Activation checkpointing", columns, cells)


def pipeline(found: Pipeline | None) -> Table:
    """The stages of a pipeline."""
    return Table(title(found), COLUMNS, cells(found.stages if found else ()))


def guards(rows: Sequence[Guard], moving: Sequence[str], checked: str) -> Table:
    """Guarded attributes."""
    notes = ["And modules, parameters, buffers, hooks and param groups themselves."]
    if moving:
        notes.append(f"Free to move: {', '.join(moving)}.")
    notes.append(f"{checked[0].upper()}{checked[1:]}.")
    cells = [(row.name, row.value) for row in rows]
    return Table("A change of these needs another program", ("name", "value"), cells, notes)


def predicates(rows: Sequence[Predicate]) -> Table:
    """Values of tensors that Python read."""
    cells = [(row.expected, str(row.count), where(row.line)) for row in rows]
    title = "Values that Python read: another one needs another program"
    return Table(title, ("value", "times", "where"), cells)


def branches(rows: Sequence[Branch]) -> Table:
    """Decisions on numbers of the optimizers."""
    cells = [(row.condition, row.taken, str(row.count), where(row.line)) for row in rows]
    columns = ("condition", "was", "times", "where")
    return Table("Branches on numbers that move", columns, cells)


def baked(rows: Sequence[Baked]) -> Table:
    """Values that are part of the program now."""
    cells = [
        (
            f"{row.name}={row.value}" if row.kind is BakedKind.NUMBER else row.value,
            ", ".join(row.ops) or "the call",
            str(row.count),
            row.name if row.kind is BakedKind.ARGUMENT else where(row.line),
        )
        for row in rows
    ]
    title = "Baked in: part of the program, no longer read"
    return Table(title, ("value", "in", "times", "from"), cells)


def calls(found: CallCounts) -> Table:
    """Numbers of calls by how they ran, and the reasons of eager ones."""
    eager = sum(one.count for one in found.eager)
    title = f"Calls: {found.programs} by programs, {found.recorded} recorded, {eager} in eager"
    title += f"; {found.looked} of the first were looked at" if found.looked else ""
    cells = [(one.serves, str(one.count), one.why) for one in found.eager]
    return Table(title, ("in eager", "calls", "why"), cells, () if cells else ("None in eager.",))


def programs(cache: Programs) -> Table:
    """The programs that are held: the variants of the step."""
    title = f"Programs: {len(cache.held)} of at most {cache.size} held"
    cells = [
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
    return Table(title, columns, cells, notes)


def left_alone(rows: Sequence[PassRecord]) -> Table:
    """Matches that passes refused to change."""
    cells = [
        (row.name, str(one.count), one.reason, where(one.line))
        for row in rows
        for one in row.refusals
    ]
    columns = ("pass", "nodes", "why", "where")
    return Table("Left alone by passes", columns, cells, () if cells else ("Nothing.",))


def cuda_graph(status: str, rows: Sequence[Refusal]) -> Table:
    """The state of the CUDA Graph, and its obstacles."""
    cells = [(row.reason, str(row.count), where(row.line)) for row in rows]
    note = "Nothing in the program is in its way."
    if status in NOT_LOOKED_AT:
        note = "What else would be in its way was not looked for."
    notes = () if cells else (note,)
    return Table(f"CUDA Graph: {status}", ("why", "nodes", "where"), cells, notes)


def gradient_norms(rows: Sequence[tuple[str, float]]) -> Table:
    """The gradient norms of the last step, by param group."""
    cells = [(group, f"{norm:.6g}") for group, norm in rows]
    return Table("Gradients of the last step", ("param group", "norm"), cells)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"
