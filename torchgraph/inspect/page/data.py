"""The data of a page, which its script draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ...debug.figures import Figures, figures_of
from ...debug.units import short, size
from ...ir.program import PassRecord
from ..facts import StageTime
from ..tables import Table
from . import charts, tables
from .convert import Spec
from .diffs import diffs
from .memory import OverTime, over_time
from .ops import PHASES, Ops, ops_of
from .source import ModuleRow, Programs, Source
from .timings import MEASURED, Seconds, Timings, seconds_of

Figure = tuple[str, str]
"""What it is, and how much."""


@dataclass(frozen=True)
class Shown:
    """The part of a report that its page shows."""

    name: str
    source: Source
    said: tuple[str, ...]
    """Sentences below the title."""
    figures: tuple[Figure, ...]
    history: tuple[PassRecord, ...] = ()
    stages: tuple[StageTime, ...] = ()
    tables: Mapping[str, Sequence[Table]] = field(default_factory=dict)
    """By section: ``overview``, ``memory``, ``guards``, ``programs``, ``refusals``."""


@dataclass(frozen=True)
class Found:
    """Figures computed of a program for its page and its plots."""

    seconds: Seconds
    modules: charts.ByModule
    """By the path of a row; under the empty path, what belongs to none."""
    memory: OverTime


def found_of(shown: Shown, programs: Programs, given: Timings) -> Found:
    """The figures of a program. ``given``: measured times of nodes; None: they are estimated."""
    program, place = programs.final, shown.source.places.of
    seconds = seconds_of(program, given, shown.name)
    modules = figures_of(program, seconds.by_node, place, seconds.besides)
    return Found(seconds, modules, over_time(programs))


def plot(shown: Shown, found: Found, name: str) -> Spec:
    """A plot by its name in `charts.PLOTS`."""
    if name == "memory":
        return charts.memory(found.memory)
    if name == "stages":
        return charts.stages(shown.stages)
    bars = charts.modules if name == "modules" else charts.phases
    return bars(found.modules, found.seconds.kind)


def page_data(shown: Shown, given: Timings) -> dict[str, Any]:
    """All data of a page, as values that JSON holds."""
    programs = shown.source.programs
    data: dict[str, Any] = {
        "name": shown.name,
        "said": shown.said,
        "figures": shown.figures,
        "tables": {key: list(map(tables.in_json, each)) for key, each in shown.tables.items()},
        "modules": _modules(shown.source, {}),
    }
    if programs is None:
        return data
    found = found_of(shown, programs, given)
    ops = ops_of(programs.final, shown.source, found.seconds.by_node)
    at_peak = tables.in_json(tables.at_peak(found.memory))
    data["figures"] = (*shown.figures, *_work(ops))
    data["tables"]["memory"] = [at_peak, *data["tables"].get("memory", ())]
    return {
        **data,
        "modules": _modules(shown.source, found.modules, ops),
        "kind": found.seconds.kind,
        "ops": ops.columns,
        "lines": [(*line, line.text) for line in ops.lines],
        "stacks": list(ops.stacks),
        "passes": list(map(_pass, shown.history)),
        "diffs": asdict(diffs(programs, shown.history)),
        "plots": {name: plot(shown, found, name) for name in charts.PLOTS},
        "notes": {"memory": _of_memory(programs, found), "time": _of_time(found.seconds)},
    }


def _work(ops: Ops) -> tuple[Figure, ...]:
    flops = short(sum(ops.columns["flops"])).strip()
    moved = size(sum(ops.columns["bytes"]))
    return (("FLOPs of products in a step", flops), ("moved by ops in a step", moved))


def _modules(
    source: Source, figures: charts.ByModule, ops: Ops | None = None
) -> dict[str, list[Any]]:
    """The modules in the order of the tree; ``parent`` is a row number, -1 for a root."""
    listed = Counter(zip(ops.columns["module"], ops.columns["phase"], strict=True) if ops else ())
    rows = [*source.modules]
    number = {row.path: i for i, row in enumerate(rows)}
    if "" in figures or any(row < 0 for row, _ in listed):
        rows.append(ModuleRow("", "ops of no module", 0))
    phases = [[figures.get(row.path, {}).get(phase, Figures()) for phase in PHASES] for row in rows]
    return {
        "path": [row.path for row in rows],
        "text": [row.text for row in rows],
        "parameters": [row.parameters for row in rows],
        "shared": [row.shared_with for row in rows],
        "parent": [number.get(row.path.rpartition(".")[0], -1) for row in rows],
        "ops": [
            [listed[number.get(row.path, -1), i] for i, _ in enumerate(PHASES)] for row in rows
        ],
        "seconds": [[one.seconds for one in each] for each in phases],
        "flops": [sum(one.flops for one in each) for each in phases],
        "bytes": [sum(one.moved for one in each) for each in phases],
        "kept": [sum(one.kept for one in each) for each in phases],
    }


def _pass(record: PassRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "edits": record.edits,
        "before": record.nodes_before,
        "after": record.nodes_after,
        "ms": 1e3 * record.seconds,
        "exact": record.exact,
    }


def _of_memory(programs: Programs, found: Found) -> list[str]:
    notes = [
        f"At most {size(found.memory.peak)} by the lifetimes of the program's values, without what "
        "kernels take for themselves, and besides what is there before a step."
    ]
    if programs.compiled:
        notes.append("Inside of compiled code Inductor plans its own buffers: they are left out.")
    return notes


def _of_time(seconds: Seconds) -> list[str]:
    if seconds.kind == MEASURED:
        others = f" {1e3 * seconds.elsewhere:.3g} ms are of calls that lowering made."
        return ["Measured by a profile: what each op takes in one step." + others * (
            seconds.elsewhere > 0
        )]  # fmt: skip
    return [
        "Estimated from FLOPs, bytes and calls at the rates of an assumed machine, not measured: "
        "compare them with each other. graph.report().save_html(path, "
        "profile=graph.profile(*args)) shows measured times."
    ]
