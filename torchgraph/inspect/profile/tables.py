"""The tables of a profile. Each fits 80 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from ...ir.program import Phase
from ..facts import Steps
from ..tables import add_row, digits, empty_table, section, size, where
from .floors import Floor
from .times import ModuleTime, NodeTime

_SHOWN = 15
"""Rows of a table before the rest is summed up."""
_NODE, _MODULE = 26, 22
"""Cells for the names of nodes and of modules."""
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def head(
    name: str, backend: str, device: str, threads: int, step: Steps, notes: Sequence[str]
) -> RenderableType:
    """The title line and the time of a step."""
    where_it_ran = device if device != "cpu" else f"cpu, {threads} thread{'s' * (threads > 1)}"
    took = (
        f"{_ms(step.median)} ms per step, median of {step.count} on copies of the state "
        f"({_ms(step.fastest)} to {_ms(step.slowest)})"
    )
    lines = [Text(took), Text(f"backend {backend}, {where_it_ran}", "dim")]
    return Group(
        Rule(Text(name, "bold green"), style="dim"), *lines, *(Text(n, "yellow") for n in notes)
    )


def floors(floor: Floor, seconds: float) -> RenderableType:
    """Both floors, and the share of the larger one that is reached."""
    table = empty_table(
        f"Limit: {_ms(floor.seconds)} ms, of which {_share(floor.seconds, seconds)} is reached",
        ("at least", "left"),
        ("", "right"),
        ("measured here", "right"),
        ("ms", "right"),
        ("of the step", "right"),
    )
    band = floor.bandwidth
    moved, rate = size(floor.least_bytes), f"{_si(band.fastest)}B/s"
    took = floor.bytes_seconds
    add_row(table, "read and written", moved, rate, _ms(took), _share(took, seconds))
    for one in floor.products:
        cells = (f"{_si(one.flops)}FLOP", f"{_si(one.rate)}FLOP/s", _ms(one.seconds))
        name = f"products in {_dtype(one.dtype)}"
        add_row(table, name, *cells, _share(one.seconds, seconds))
    which = "about as much" if band.block <= floor.least_bytes else "the least that can be timed"
    notes = [
        f"All ops together move {size(floor.traffic)}, each on its own: "
        f"{_ms(floor.traffic_seconds)} ms by copies ({_si(band.copy)}B/s).",
        f"Memory was moved in blocks of {size(band.block)}: {which}.",
    ]
    return section(table, *(Text(note, "dim") for note in notes))


def phases(found: Mapping[Phase, float]) -> RenderableType:
    """Seconds by phase."""
    table = empty_table("Phases", ("phase", "left"), ("ms", "right"), ("of all ops", "right"))
    whole = sum(found.values())
    for phase, seconds in found.items():
        add_row(table, phase.value, _ms(seconds), _of(seconds, whole))
    return section(table)


def modules(found: Sequence[ModuleTime]) -> RenderableType:
    """Seconds by module and phase, the longest first."""
    columns = (phase.value for phase in Phase)
    table = empty_table(
        "Modules: ms of their own ops",
        ("module", "left"),
        *((name, "right") for name in columns),
        ("all", "right"),
        ("of all ops", "right"),
    )
    whole = sum(one.seconds for one in found)
    rest = found[_SHOWN:]
    rows = [(one.module or "(no module)", one) for one in found[:_SHOWN]]
    if rest:
        parts = ([getattr(one, phase.value) for one in rest] for phase in Phase)
        rows.append((f"{len(rest)} more", ModuleTime("", *map(sum, parts))))
    for name, one in rows:
        cells = (one.forward, one.backward, one.update, one.seconds)
        add_row(
            table, name, *(_ms(cell) if cell else "-" for cell in cells), _of(one.seconds, whole)
        )
    return section(table)


def nodes(found: Sequence[NodeTime]) -> RenderableType:
    """The nodes that take longest."""
    table = empty_table("Nodes that take longest")
    for name in ("node", "module"):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    table.add_column("ms", justify="right")
    table.add_column("of all", justify="right")
    table.add_column("from", ratio=1, no_wrap=True, overflow="ellipsis")
    table.expand = True
    whole = sum(one.seconds for one in found)
    longest = sorted(found, key=lambda one: -one.seconds)[:_SHOWN]
    for one in longest:
        mark = "~" if one.estimated else ""
        cells = (
            _cut(one.node, _NODE),
            _cut(one.module, _MODULE),
            f"{mark}{_ms(one.seconds)}",
            _of(one.seconds, whole),
        )
        add_row(table, *cells, where(one.line))
    notes = []
    if any(one.estimated for one in longest):
        notes.append(Text("~: of compiled code, whose time is split by the work of its ops", "dim"))
    return section(table, *notes)


def _cut(name: str, width: int) -> str:
    """The name shortened in its middle to the width of the column."""
    if len(name) <= width:
        return name
    end = width // 3
    return f"{name[: width - end - 1]}…{name[-end:]}"


def _ms(seconds: float) -> str:
    return digits(1e3 * seconds)


def _share(part: float, whole: float) -> str:
    return f"{digits(100 * part / whole, least=0.1)}%"


def _of(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else ""


def _si(value: float) -> str:
    """``11.2 G`` of 1.12e10."""
    for factor, prefix in _PREFIXES:
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "


def _dtype(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
