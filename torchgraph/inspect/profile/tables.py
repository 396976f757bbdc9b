"""The tables of a profile. Each fits 80 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from ...debug.units import Units, digits, short, size
from ...ir.program import Phase
from ..facts import Steps
from ..tables import Table, head
from .floors import Floor
from .times import ModuleTime, NodeTime

_SHOWN = 15
"""Rows of a table before the rest is summed up."""
_NODE, _MODULE = 26, 22
"""Cells for the names of nodes and of modules."""
_SI = Units(("", "k", "M", "G", "T"))


def profile_head(
    name: str, backend: str, device: str, threads: int, step: Steps, notes: Sequence[str]
) -> RenderableType:
    """The title line and the time of a step."""
    where_it_ran = device if device != "cpu" else f"cpu, {threads} thread{'s' * (threads > 1)}"
    took = (
        f"{_ms(step.median)} ms per step, median of {step.count} on copies of the state "
        f"({_ms(step.fastest)} to {_ms(step.slowest)})"
    )
    ran = Text(f"backend {backend}, {where_it_ran}", "dim")
    return head(name, Text(took), ran, *(Text(note, "yellow") for note in notes))


def floors(floor: Floor, seconds: float) -> Table:
    """Both floors, and the share of the larger one that is reached."""
    band, took = floor.bandwidth, floor.bytes_seconds
    moved, rate = size(floor.least_bytes), f"{short(band.fastest, _SI)}B/s"
    rows = [("read and written", moved, rate, _ms(took), _share(took, seconds))]
    for one in floor.products:
        rows.append(
            (
                f"products in {str(one.dtype).removeprefix('torch.')}",
                f"{short(one.flops, _SI)}FLOP",
                f"{short(one.rate, _SI)}FLOP/s",
                _ms(one.seconds),
                _share(one.seconds, seconds),
            )
        )
    which = "about as much" if band.block <= floor.least_bytes else "the least that can be timed"
    notes = [
        f"All ops together move {size(floor.traffic)}, each on its own: "
        f"{_ms(floor.traffic_seconds)} ms by copies ({short(band.copy, _SI)}B/s).",
        f"Memory was moved in blocks of {size(band.block)}: {which}.",
    ]
    return Table(
        f"Limit: {_ms(floor.seconds)} ms, of which {_share(floor.seconds, seconds)} is reached",
        ("at least", ">", ">measured here", ">ms", ">of the step"),
        rows,
        [Text(note, "dim") for note in notes],
    )


def phases(found: Mapping[Phase, float]) -> Table:
    """Seconds by phase."""
    whole = sum(found.values())
    rows = [(one.value, _ms(seconds), _of(seconds, whole)) for one, seconds in found.items()]
    return Table("Phases", ("phase", ">ms", ">of all ops"), rows)


def modules(found: Sequence[ModuleTime]) -> Table:
    """Seconds by module and phase, the longest first."""
    whole = sum(one.seconds for one in found)
    rest = found[_SHOWN:]
    named = [(one.module or "(no module)", one) for one in found[:_SHOWN]]
    if rest:
        parts = ([getattr(one, phase.value) for one in rest] for phase in Phase)
        named.append((f"{len(rest)} more", ModuleTime("", *map(sum, parts))))
    rows = []
    for name, one in named:
        times = (one.forward, one.backward, one.update, one.seconds)
        rows.append((name, *(_ms(took) if took else "-" for took in times), _of(times[-1], whole)))
    columns = ("module", *(f">{phase.value}" for phase in Phase), ">all", ">of all ops")
    return Table("Modules: ms of their own ops", columns, rows)


def nodes(found: Sequence[NodeTime]) -> Table:
    """The nodes that take longest."""
    whole = sum(one.seconds for one in found)
    longest = sorted(found, key=lambda one: -one.seconds)[:_SHOWN]
    rows = [
        (
            _cut(one.node, _NODE),
            _cut(one.module, _MODULE),
            f"{'~' if one.estimated else ''}{_ms(one.seconds)}",
            _of(one.seconds, whole),
            one.line,
        )
        for one in longest
    ]
    notes = []
    if any(one.estimated for one in longest):
        notes.append(Text("~: of compiled code, whose time is split by the work of its ops", "dim"))
    columns = ("…node", "…module", ">ms", ">of all", "…from")
    return Table("Nodes that take longest", columns, rows, notes)


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
