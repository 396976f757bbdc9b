"""The tables of a report, as data: a terminal shows them 80 columns wide, a page in HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table as RichTable
from rich.text import Text

from ..debug.units import digits, size
from ..errors import SourceLine
from ..ir.program import PassRecord, Refusal
from ..lower.memory.planning import MemoryPlan
from ..replay.cuda.graphs import NOT_LOOKED_AT
from .baked import Baked, BakedKind
from .facts import (
    Branch,
    CachedProgram,
    CallCounts,
    Guard,
    PhaseCount,
    Predicate,
    ProgramMemory,
    Programs,
    StageTime,
    Steps,
)
from .peaks import Peaks
from .pipelining import Pipeline
from .precision import Precision
from .recomputation import Recomputation

_SHOWN = 20
"""Rows of a table on a terminal before the rest is only counted."""

Cell = str | Text | SourceLine | None
"""Text, or a line of the user's: its place and its code."""


@dataclass(frozen=True)
class Table:
    """Rows under columns."""

    title: str
    columns: Sequence[str]
    """Names. ``>`` before one aligns it to the right, ``…`` lets its cells be cut."""
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str | Text] = ()
    empty: str = ""
    """Where there are no rows: what a page says, and a terminal shows the title alone.

    Without it a terminal shows nothing of a table without rows.
    """
    total: Sequence[Cell] = ()
    """A last row, on a terminal."""
    limit: int | None = None
    """The number of rows on a terminal before the rest is only counted."""

    def __rich__(self) -> RenderableType:
        if not self.rows:
            return Text(f"\n{self.title}", "bold") if self.empty else Group()
        table = RichTable(
            title=Text(self.title, "bold cyan"),
            title_justify="left",
            header_style="dim",
            box=None,
            pad_edge=False,
            padding=(0, 2, 0, 0),
            expand=self.columns[-1].startswith("…"),
        )
        for name in self.columns:
            _add_column(table, name, is_last=name is self.columns[-1])
        for row in self.rows[: self.limit]:
            add_row(table, *row)
        if self.total:
            table.add_section()
            add_row(table, *self.total, style="bold")
        more = len(self.rows) - len(self.rows[: self.limit])
        left = [Text(f"... and {more} more", "dim")] if more else []
        return Padding(Group(table, *left, *self.notes), (1, 0, 0, 0))


def _add_column(table: RichTable, name: str, *, is_last: bool) -> None:
    if name.startswith("…"):
        ratio = 1 if is_last else None
        table.add_column(name[1:], ratio=ratio, no_wrap=True, overflow="ellipsis")
    else:
        table.add_column(
            name.removeprefix(">"),
            justify="right" if name.startswith(">") else "left",
            overflow="fold",
        )


def add_row(table: RichTable, *cells: Cell, style: str = "") -> None:
    """A row of texts as they are: rich takes ``[i]`` in a line of code for its markup."""
    table.add_row(*map(_text, cells), style=style)


def _text(cell: Cell) -> Text:
    if isinstance(cell, Text):
        return cell
    if not isinstance(cell, SourceLine):
        return Text(cell or "")
    place = Text(cell.place)
    return place.append(f" {cell.text}", "dim") if cell.text else place


def head(name: str, *lines: Text) -> RenderableType:
    """The title line of a report, and the lines below it."""
    return Group(Rule(Text(name, "bold green"), style="dim"), *lines)


def report_head(
    name: str, backend: str, counts: Sequence[PhaseCount], steps: Steps | None, plan: str
) -> RenderableType:
    """The title line, what becomes of the backend, and the time of a step."""
    nodes = sum(count.after_passes for count in counts)
    words = f"{nodes} nodes, backend {backend}" if counts else "no program: the step runs in eager"
    lines = [Text(words, "dim"), *([Text(plan, "dim")] if plan else [])]
    return head(name, *lines, *([Text(_of_steps(steps))] if steps else []))


def _of_steps(steps: Steps) -> str:
    if steps.count == 1:
        return f"{digits(1e3 * steps.median)} ms on the host for the last step"
    least, most = (digits(1e3 * seconds) for seconds in (steps.fastest, steps.slowest))
    return (
        f"{digits(1e3 * steps.median)} ms per step on the host, median of the last {steps.count} "
        f"({least} to {most})"
    )


def stages(found: Sequence[StageTime]) -> Table:
    """Seconds by stage."""
    rows = []
    whole = "\n"
    for stage in found:
        part = stage.name.startswith(whole)
        whole = whole if part else stage.name
        rows.append((f"  {stage.name}" if part else stage.name, _thousandths(stage.seconds)))
    return Table("Compilation", ("stage", ">seconds"), rows)


def passes(found: Sequence[PassRecord]) -> Table:
    """Edits and time by pass."""
    rows = [
        (
            one.name,
            str(one.edits),
            str(one.nodes_before),
            str(one.nodes_after),
            digits(1e3 * one.seconds),
            Text("yes", "green") if one.exact else Text("no", "yellow"),
        )
        for one in found
    ]
    columns = ("pass", ">edits", ">nodes before", ">after", ">ms", "bitwise")
    return Table("Passes", columns, rows)


def refusals(found: Sequence[PassRecord]) -> Table:
    """Matches that passes refused to change, and the reasons."""
    rows = [
        (one.name, str(refusal.count), refusal.reason, refusal.line)
        for one in found
        for refusal in one.refusals
    ]
    return Table("Left alone", ("pass", ">nodes", "why", "where"), rows, limit=_SHOWN)


def nodes(found: Sequence[PhaseCount]) -> Table:
    """Op nodes by phase."""
    counts = [(one.captured, one.after_passes, one.in_place) for one in found]
    rows = [(one.phase.value, *map(str, row)) for one, row in zip(found, counts, strict=True)]
    total = ("all", *(str(sum(column)) for column in zip(*counts, strict=True)))
    return Table("Nodes", ("phase", ">captured", ">after passes", ">in place"), rows, total=total)


def precision(found: Sequence[Precision]) -> Table:
    """Ops by dtype, where there is more than one."""
    rows = [
        (
            str(one.dtype).removeprefix("torch."),
            one.phase.value,
            ", ".join(f"{name} x{count}" if count > 1 else name for name, count in one.ops),
        )
        for one in found
    ]
    return Table("Precision", ("type", "phase", "ops"), rows)


def memory(sizes: ProgramMemory) -> Table:
    """Bytes that a program reads, by kind."""
    kinds = ("parameters", "buffers", "slots", "derived", "constants", "inputs")
    rows = [
        ("optimizer slots" if kind == "slots" else kind, size(getattr(sizes, kind)))
        for kind in kinds
    ]
    return Table("Memory", ("held by", ">bytes"), rows, total=("all", size(sizes.total)))


def cuda_graph(status: str, found: Sequence[Refusal]) -> Table:
    """The state of the CUDA Graph, and its obstacles."""
    rows = [(one.reason, str(one.count), one.line) for one in found]
    empty = "Nothing in the program is in its way."
    if status in NOT_LOOKED_AT:
        empty = "What else would be in its way was not looked for."
    columns = ("why", ">nodes", "where")
    return Table(f"CUDA Graph: {status}", columns, rows, empty=empty, limit=_SHOWN)


def peaks(found: Peaks) -> Table:
    """Peaks of allocated bytes of a step."""
    besides = "" if found.workspaces else ", without what kernels take"
    known = {f"planned{besides}": found.planned, "measured": found.measured}
    known["eager, measured"] = found.eager
    rows = [(name, size(count)) for name, count in known.items() if count is not None]
    notes = [Text(note, "yellow") for note in found.notes]
    notes += [Text(f"by {found.method}", "dim")] if found.method else []
    return Table("Peak of a step", ("bytes that it allocates", ">"), rows, notes)


def memory_plans(plans: Sequence[MemoryPlan]) -> Table:
    """The orders that memory planning tried, and the contents of the arena."""
    rows = []
    for plan in plans:
        for one in plan.tried:
            chosen = " (chosen)" if one.name == plan.order else ""
            rows.append((f"order: {one.name}{chosen}", size(one.peak), ""))
        if plan.arena.peak:
            values = sum(map(len, plan.arena.offsets.values()))
            way = f", {plan.arena.way}" if values else ": none pays"
            rows.append((f"arena{way}", size(plan.arena.nbytes), str(values)))
        for left in plan.arena.outside:
            rows.append((f"outside: {left.reason}", size(left.nbytes), str(left.values)))
    return Table("Memory plan", ("", ">bytes", ">values"), rows)


def recomputed(found: Sequence[Recomputation]) -> Table:
    """Savings and costs of activation checkpointing."""
    columns = ("module", ">kept before", ">now", ">ops repeated", ">ms")
    sums = (
        sum(getattr(one, name) for one in found)
        for name in ("kept_before", "kept_after", "nodes", "seconds")
    )
    whole = [Recomputation("all", *sums)] if len(found) > 1 else []
    rows = [
        (
            one.name,
            size(one.kept_before),
            size(one.kept_after),
            str(one.nodes),
            f"{1000 * one.seconds:.2f}",
        )
        for one in (*found, *whole)
    ]
    return Table("Activation checkpointing", columns, rows)


def pipeline(found: Pipeline | None) -> Table:
    """The stages of a pipeline."""
    columns = ("stage", ">ranks", ">forward", ">backward", ">kept", ">sends", ">sends back")
    if found is None:
        return Table("Pipeline", columns, ())
    rows = [
        (
            one.name,
            ", ".join(map(str, one.ranks)),
            str(one.forward),
            str(one.backward),
            size(one.kept),
            size(one.sends),
            size(one.sends_back),
        )
        for one in found.stages
    ]
    update = f"; {size(found.exchanged)} in the update" if found.exchanged else ""
    title = f"Pipeline ({found.schedule}, {found.micro_batches} micro-batches{update})"
    return Table(title, columns, rows)


def calls(found: CallCounts) -> Table:
    """Numbers of calls by how they ran, and the reasons of eager ones."""
    eager = sum(one.count for one in found.eager)
    title = f"Calls: {found.programs} by programs, {found.recorded} recorded, {eager} in eager"
    title += f"; {found.looked} of the first were looked at" if found.looked else ""
    rows = [(one.serves, str(one.count), one.why) for one in found.eager]
    columns = ("in eager", ">calls", "why")
    return Table(title, columns, rows, empty="None in eager.", limit=_SHOWN)


def programs(cache: Programs) -> Table:
    """The cached programs."""
    title = (
        f"Programs: {len(cache.held)} of at most {cache.size} held; hits: {cache.hits}, "
        f"misses: {cache.captures}, each a capture"
    )
    rows = [
        (
            Text(held.signature).append(f"\n{held.told}" if held.told else "", "dim"),
            str(held.nodes),
            _runs(held),
            size(held.nbytes),
            "" if held.peak is None else size(held.peak),
            Text("*" if held.reported else "", "dim"),
        )
        for held in cache.held
    ]
    columns = ("serves", ">nodes", ">runs", ">holds", ">peak", "")
    reasons = [Text(f"captured anew: {reason}", "yellow") for reason in _counted(cache.reasons)]
    return Table(title, columns, rows, [Text("*: what this report is about", "dim"), *reasons])


def gradient_norms(found: Sequence[tuple[str, float]]) -> Table:
    """The gradient norms of the last step, by param group."""
    rows = [(group, f"{norm:.6g}") for group, norm in found]
    return Table("Gradients of the last step", ("param group", ">norm"), rows)


_CHECKED = {"compiled": "by compiled code", "python": "in Python: the guards are not compiled here"}


def checked(form: str, seconds: float | None) -> str:
    """The guard checks before each call, and their time."""
    took = "" if seconds is None else f", in {digits(1e6 * seconds)} us"
    return f"checked before each call{took}, {_CHECKED[form]}"


def guards(found: Sequence[Guard], moving: Sequence[str], checked: str) -> Table:
    """Guarded attributes, those of one name and value in one row."""
    groups: dict[str, list[str]] = {}
    for guard in found:
        owner, _, name = guard.name.rpartition(".")
        groups.setdefault(f"{name} = {guard.value}", []).append(owner)
    rows = [(value, _names(owners)) for value, owners in groups.items()]
    notes = [Text("and modules, parameters, buffers, hooks, param groups themselves", "dim")]
    if moving:
        notes.append(Text(f"free to move: {', '.join(moving)}", "green"))
    notes.append(Text(checked, "dim"))
    title = "Guards: a change needs another program"
    return Table(title, ("value", "of"), rows, notes, limit=_SHOWN)


def predicates(found: Sequence[Predicate]) -> Table:
    """Values of tensors that Python read."""
    title = "Values that Python read: another one needs another program"
    rows = [(_several(one.expected, one.count), one.line) for one in found]
    return Table(title, ("value", "at"), rows, limit=_SHOWN)


def branches(found: Sequence[Branch]) -> Table:
    """Decisions on numbers of the optimizers."""
    rows = [(_several(one.condition, one.count), one.taken) for one in found]
    return Table("Branches on numbers that move", ("condition", "was"), rows, limit=_SHOWN)


def baked(found: Sequence[Baked]) -> Table:
    """Values that are part of the program now."""
    title = "Baked in: part of the program, no longer read"
    return Table(title, ("value", "in", "…from"), list(map(_baked, found)), limit=_SHOWN)


def _baked(one: Baked) -> tuple[Cell, ...]:
    if one.kind is BakedKind.ARGUMENT:
        return one.value, "the call", one.name
    ops = f"{one.ops[0]}, ..." if len(one.ops) > 1 else "".join(one.ops)
    if one.kind is BakedKind.CONSTANT:
        return f"{one.value}, {size(one.nbytes)}", ops, one.line
    times = f" x{one.count}" if one.count > 1 else ""
    return f"{one.name}={one.value}", f"{ops}{times}", one.line


def _thousandths(seconds: float) -> str:
    """To three places, of what is less than one of them two digits."""
    return digits(seconds) if 0 < seconds < 0.001 else f"{seconds:.3f}"


def _counted(reasons: Iterable[str]) -> list[str]:
    counts: dict[str, int] = {}
    for reason in reasons:
        counts[reason] = counts.pop(reason, 0) + 1
    return [f"{reason} ({n} times)" if n > 1 else reason for reason, n in counts.items()]


def _several(value: str, count: int) -> Text:
    """A value, and how often it is there."""
    return Text(value).append(f"  ({count} times)" if count > 1 else "", "dim")


def _names(owners: Sequence[str]) -> Text:
    names = Text(owners[0])
    return names.append(f" and {len(owners) - 1} more", "dim") if len(owners) > 1 else names


def _runs(held: CachedProgram) -> str:
    """``16 aten, 84 inductor``."""
    if held.inductor_since is None:
        return str(held.runs)
    return f"{held.inductor_since} aten, {held.runs - held.inductor_since} inductor"
