"""The tables of a report. Each fits 80 columns and is empty when it has nothing to say."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import Literal

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ..debug import screen
from ..errors import SourceLine
from ..ir.program import PassRecord, Refusal
from ..lower.memory.planning import MemoryPlan
from ..verify.audit import Confirmation
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
from .precision import Precision

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_SHOWN = 20
"""Rows of a table before the rest is only counted."""

_Justify = Literal["left", "right"]


def head(
    name: str,
    backend: str,
    counts: Sequence[PhaseCount],
    steps: Steps | None,
    plan: str,
) -> RenderableType:
    """The title line, what becomes of the backend, and the time of a step."""
    lines = [Text(_of_steps(steps))] if steps else []
    nodes = sum(count.after_passes for count in counts)
    words = f"{nodes} nodes, backend {backend}" if counts else "no program: the step runs in eager"
    line = Text(words, "dim")
    if plan:
        lines.insert(0, Text(plan, "dim"))
    return Group(Rule(Text(name, "bold green"), style="dim"), line, *lines)


def _of_steps(steps: Steps) -> str:
    if steps.count == 1:
        return f"{digits(1e3 * steps.median)} ms on the host for the last step"
    least, most = (digits(1e3 * seconds) for seconds in (steps.fastest, steps.slowest))
    return (
        f"{digits(1e3 * steps.median)} ms per step on the host, median of the last {steps.count} "
        f"({least} to {most})"
    )


def stages(rows: Sequence[StageTime]) -> RenderableType:
    """Seconds by stage."""
    table = empty_table("Compilation", ("stage", "left"), ("seconds", "right"))
    whole = "\n"
    for stage in rows:
        part = stage.name.startswith(whole)
        whole = whole if part else stage.name
        add_row(table, f"  {stage.name}" if part else stage.name, _thousandths(stage.seconds))
    return section(table)


def passes(rows: Sequence[PassRecord]) -> RenderableType:
    """Edits and time by pass."""
    table = empty_table(
        "Passes",
        ("pass", "left"),
        ("edits", "right"),
        ("nodes before", "right"),
        ("after", "right"),
        ("ms", "right"),
        ("bitwise", "left"),
    )
    for row in rows:
        before, after = str(row.nodes_before), str(row.nodes_after)
        exact = Text("yes", "green") if row.exact else Text("no", "yellow")
        time = digits(1e3 * row.seconds)
        add_row(table, row.name, str(row.edits), before, after, time, exact)
    return section(table)


def refusals(rows: Sequence[PassRecord]) -> RenderableType:
    """Matches that passes refused to change, and the reasons."""
    table = empty_table(
        "Left alone", ("pass", "left"), ("nodes", "right"), ("why", "left"), ("where", "left")
    )
    found = [(row.name, refusal) for row in rows for refusal in row.refusals]
    for name, refusal in found[:_SHOWN]:
        add_row(table, name, str(refusal.count), refusal.reason, where(refusal.line))
    return section(table, *_more(len(found)))


def nodes(rows: Sequence[PhaseCount]) -> RenderableType:
    """Op nodes by phase."""
    table = empty_table(
        "Nodes",
        ("phase", "left"),
        ("captured", "right"),
        ("after passes", "right"),
        ("in place", "right"),
    )
    for row in rows:
        add_row(table, row.phase.value, str(row.captured), str(row.after_passes), str(row.in_place))
    table.add_section()
    columns = ("captured", "after_passes", "in_place")
    totals = (str(sum(getattr(row, column) for row in rows)) for column in columns)
    add_row(table, "all", *totals, style="bold")
    return section(table)


def precision(rows: Sequence[Precision]) -> RenderableType:
    """Ops by dtype."""
    table = empty_table("Precision", ("type", "left"), ("phase", "left"), ("ops", "left"))
    for row in rows:
        ops = ", ".join(f"{name} x{count}" if count > 1 else name for name, count in row.ops)
        add_row(table, str(row.dtype).removeprefix("torch."), row.phase.value, ops)
    return section(table)


def memory(sizes: ProgramMemory) -> RenderableType:
    """Bytes by kind."""
    table = empty_table("Memory", ("held by", "left"), ("bytes", "right"))
    for kind in ("parameters", "buffers", "slots", "derived", "constants", "inputs"):
        add_row(table, "optimizer slots" if kind == "slots" else kind, size(getattr(sizes, kind)))
    table.add_section()
    add_row(table, "all", size(sizes.total), style="bold")
    return section(table)


def cuda_graph(status: str, rows: Sequence[Refusal]) -> RenderableType:
    """The state of the CUDA Graph, and its obstacles."""
    table = empty_table(
        f"CUDA Graph: {status}", ("why", "left"), ("nodes", "right"), ("where", "left")
    )
    for row in rows[:_SHOWN]:
        add_row(table, row.reason, str(row.count), where(row.line))
    return section(table, *_more(len(rows))) if rows else Text(f"\nCUDA Graph: {status}", "bold")


def confirmation(found: Confirmation | None) -> RenderableType:
    """Numbers of comparisons of compiled code."""
    if found is None:
        return Group()
    return Text(f"\nCompiled code: {found}", "yellow" if found.dropped else "bold")


def peaks(found: Peaks) -> RenderableType:
    """Peaks of allocated bytes of a step."""
    table = empty_table("Peak of a step", ("bytes that it allocates", "left"), ("", "right"))
    besides = "" if found.workspaces else ", without what kernels take"
    rows = {f"planned{besides}": found.planned, "measured": found.measured}
    rows["eager, measured"] = found.eager
    for name, count in rows.items():
        if count is not None:
            add_row(table, name, size(count))
    notes = [Text(note, "yellow") for note in found.notes]
    notes += [Text(f"by {found.method}", "dim")] if found.method else []
    return section(table, *notes)


def memory_plans(plans: Sequence[MemoryPlan]) -> RenderableType:
    """The orders that memory planning tried, and the contents of the arena."""
    table = empty_table("Memory plan", ("", "left"), ("bytes", "right"), ("values", "right"))
    for plan in plans:
        for one in plan.tried:
            chosen = " (chosen)" if one.name == plan.order else ""
            add_row(table, f"order: {one.name}{chosen}", size(one.peak), "")
        if plan.arena.peak:
            values = sum(map(len, plan.arena.offsets.values()))
            way = f", {plan.arena.way}" if values else ": none pays"
            add_row(table, f"arena{way}", size(plan.arena.nbytes), str(values))
        for left in plan.arena.outside:
            add_row(table, f"outside: {left.reason}", size(left.nbytes), str(left.values))
    return section(table)


def calls(found: CallCounts) -> RenderableType:
    """Numbers of calls by how they ran."""
    eager = sum(one.count for one in found.eager)
    title = f"Calls: {found.programs} by programs, {found.recorded} recorded, {eager} in eager"
    title += f"; {found.looked} of the first were looked at" if found.looked else ""
    title += f"\nThe last look told nothing: {found.untold}" if found.untold else ""
    table = empty_table(title, ("in eager", "left"), ("calls", "right"), ("why", "left"))
    for one in found.eager[:_SHOWN]:
        add_row(table, one.serves, str(one.count), one.why)
    if not found.eager:
        return Text(f"\n{title}", "bold")
    return section(table, *_more(len(found.eager)))


def programs(cache: Programs) -> RenderableType:
    """The cached programs."""
    title = (
        f"Programs: {len(cache.held)} of at most {cache.size} held; hits: {cache.hits}, "
        f"misses: {cache.captures}, each a capture"
    )
    columns: list[tuple[str, _Justify]] = [(n, "right") for n in ("nodes", "runs", "holds", "peak")]
    table = empty_table(title, ("serves", "left"), *columns, ("", "left"))
    for held in cache.held:
        mark = Text("*" if held.reported else "", "dim")
        peak = "" if held.peak is None else size(held.peak)
        cells = (str(held.nodes), _runs(held), size(held.nbytes), peak)
        serves = Text(held.signature).append(f"\n{held.told}" if held.told else "", "dim")
        add_row(table, serves, *cells, mark)
    reasons = [Text(f"captured anew: {reason}", "yellow") for reason in _counted(cache.reasons)]
    return section(table, Text("*: what this report is about", "dim"), *reasons)


def gradient_norms(rows: Sequence[tuple[str, float]]) -> RenderableType:
    """The table of the gradient norms of the last step, by param group."""
    table = empty_table("Gradients of the last step", ("param group", "left"), ("norm", "right"))
    for group, norm in rows:
        add_row(table, group, f"{norm:.6g}")
    return section(table)


_CHECKED = {"compiled": "by compiled code", "python": "in Python: the guards are not compiled here"}


def checked(form: str, seconds: float | None) -> str:
    """The guard checks before each call, and their time."""
    took = "" if seconds is None else f", in {digits(1e6 * seconds)} us"
    return f"checked before each call{took}, {_CHECKED[form]}"


def guards(rows: Sequence[Guard], moving: Sequence[str], checked: str) -> RenderableType:
    """Guarded attributes, those of one name and value in one row."""
    table = empty_table(
        "Guards: a change needs another program",
        ("value", "left"),
        ("of", "left"),
    )
    groups: dict[str, list[str]] = {}
    for guard in rows:
        owner, _, name = guard.name.rpartition(".")
        groups.setdefault(f"{name} = {guard.value}", []).append(owner)
    for value, owners in list(groups.items())[:_SHOWN]:
        add_row(table, value, _names(owners))
    notes = _more(len(groups))
    notes += [Text("and modules, parameters, buffers, hooks, param groups themselves", "dim")]
    if moving:
        notes.append(Text(f"free to move: {', '.join(moving)}", "green"))
    notes.append(Text(checked, "dim"))
    return section(table, *notes)


def predicates(rows: Sequence[Predicate]) -> RenderableType:
    """Values of tensors that Python read."""
    title = "Values that Python read: another one needs another program"
    table = empty_table(title, ("value", "left"), ("at", "left"))
    for row in rows[:_SHOWN]:
        times = f"  ({_times(row.count)})" if row.count > 1 else ""
        add_row(table, Text(row.expected).append(times, "dim"), where(row.line))
    return section(table, *_more(len(rows)))


def branches(rows: Sequence[Branch]) -> RenderableType:
    """Decisions on numbers of the optimizers."""
    table = empty_table("Branches on numbers that move", ("condition", "left"), ("was", "left"))
    for row in rows[:_SHOWN]:
        times = f"  ({_times(row.count)})" if row.count > 1 else ""
        add_row(table, Text(row.condition).append(times, "dim"), row.taken)
    return section(table, *_more(len(rows)))


def baked(rows: Sequence[Baked]) -> RenderableType:
    """Values that are part of the program now."""
    table = empty_table(
        "Baked in: part of the program, no longer read",
        ("value", "left"),
        ("in", "left"),
    )
    table.expand = True
    table.add_column("from", ratio=1, no_wrap=True, overflow="ellipsis")
    for row in rows[:_SHOWN]:
        times = f" x{row.count}" if row.count > 1 else ""
        if row.kind is BakedKind.NUMBER:
            cells = (f"{row.name}={row.value}", f"{_ops(row.ops)}{times}")
        elif row.kind is BakedKind.CONSTANT:
            cells = (f"{row.value}, {size(row.nbytes)}", _ops(row.ops))
        else:
            cells = (row.value, "the call")
        add_row(table, *cells, row.name if row.kind is BakedKind.ARGUMENT else where(row.line))
    return section(table, *_more(len(rows)))


def plain(shown: RenderableType) -> str:
    """A rich renderable as plain text, 80 columns wide."""
    return screen.plain(shown, 80, screen.encoding_of_output())


def digits(value: float, least: float = 0.01) -> str:
    """Three digits, two of what is below ``least``; never in powers of ten."""
    if value >= 100 or not value:
        return f"{value:.0f}"
    if value >= least:
        return f"{value:.3g}"
    return f"{value:.{1 - math.floor(math.log10(value))}f}"


def _thousandths(seconds: float) -> str:
    """To three places, of what is less than one of them two digits."""
    return digits(seconds) if 0 < seconds < 0.001 else f"{seconds:.3f}"


def size(count: int) -> str:
    """``2.4 MiB``."""
    scaled, unit = float(count), 0
    while scaled >= 1024 and unit < len(_UNITS) - 1:
        scaled, unit = scaled / 1024, unit + 1
    return f"{scaled:.1f} {_UNITS[unit]}" if unit else f"{count} B"


def empty_table(title: str, *columns: tuple[str, _Justify]) -> Table:
    table = Table(
        title=Text(title, "bold cyan"),
        title_justify="left",
        header_style="dim",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for name, justify in columns:
        table.add_column(name, justify=justify, overflow="fold")
    return table


def add_row(table: Table, *cells: str | Text, style: str = "") -> None:
    """A row of texts as they are: rich takes ``[i]`` in a line of code for its markup."""
    texts = (Text(cell) if isinstance(cell, str) else cell for cell in cells)
    table.add_row(*texts, style=style)


def section(table: Table, *notes: RenderableType) -> RenderableType:
    if not table.row_count:
        return Group()
    return Padding(Group(table, *notes), (1, 0, 0, 0))


def _more(count: int) -> list[RenderableType]:
    return [Text(f"... and {count - _SHOWN} more", "dim")] if count > _SHOWN else []


def _counted(reasons: Iterable[str]) -> list[str]:
    counts: dict[str, int] = {}
    for reason in reasons:
        counts[reason] = counts.pop(reason, 0) + 1
    return [f"{reason} ({_times(n)})" if n > 1 else reason for reason, n in counts.items()]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _names(owners: Sequence[str]) -> Text:
    names = Text(owners[0])
    return names.append(f" and {len(owners) - 1} more", "dim") if len(owners) > 1 else names


def _ops(names: Sequence[str]) -> str:
    return f"{names[0]}, ..." if len(names) > 1 else "".join(names)


def where(line: SourceLine | None) -> Text:
    """``models.py:12``, and the line itself in dim; empty for none."""
    if line is None:
        return Text("")
    place = Text(f"{os.path.basename(line.filename)}:{line.lineno}")
    return place.append(f" {line.text}", "dim") if line.text else place


def _runs(held: CachedProgram) -> str:
    """``16 aten, 84 inductor``."""
    if held.inductor_since is None:
        return str(held.runs)
    return f"{held.inductor_since} aten, {held.runs - held.inductor_since} inductor"
