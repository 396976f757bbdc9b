"""The data of a page, which its script draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ...costs.op_calls import Work
from ...debug.units import short, size
from ...ir.program import PassRecord
from ..facts import StageTime
from ..tables import Table
from . import charts, tables
from .convert import Spec
from .diffs import diffs
from .memory import OverTime, over_time
from .ops import Ops, Spent, ops_of
from .places import Places
from .source import Programs, Source
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

    ops: Ops
    seconds: Seconds
    memory: OverTime
    places: Places


def found_of(shown: Shown, programs: Programs, given: Timings) -> Found:
    """The figures of a program. ``given``: measured times of nodes; None: they are estimated."""
    seconds, places = seconds_of(programs.final, given, shown.name), Places()
    ops = ops_of(programs.final, shown.source, seconds, places)
    return Found(ops, seconds, over_time(programs), places)


def plot(shown: Shown, found: Found, name: str) -> Spec:
    """A plot by its name in `charts.PLOTS`."""
    kind, by_module = found.seconds.kind, found.ops.by_module
    if name == "memory":
        return charts.memory(found.memory)
    if name == "modules":
        return charts.modules(by_module, kind)
    if name == "phases":
        return charts.phases(by_module, kind)
    return charts.stages(shown.stages)


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
    differences = diffs(programs, shown.history)
    at_peak = tables.in_json(tables.at_peak(found.memory))
    data["figures"] = (*shown.figures, *_work(found.ops.work))
    data["tables"]["memory"] = [at_peak, *data["tables"].get("memory", ())]
    data["modules"] = _modules(shown.source, found.ops.by_module)
    return {
        **data,
        "kind": found.seconds.kind,
        "ops": found.ops.columns,
        "lines": found.places.lines,
        "stacks": found.places.stacks,
        "passes": list(map(_pass, shown.history)),
        "diffs": asdict(differences),
        "plots": {name: plot(shown, found, name) for name in charts.PLOTS},
        "notes": {"memory": _of_memory(programs, found), "time": _of_time(found.seconds)},
    }


def _work(work: Work) -> tuple[Figure, ...]:
    flops = ("FLOPs of products in a step", short(work.flops).strip())
    return (flops, ("moved by ops in a step", size(work.bytes)))


def _modules(source: Source, spent: Mapping[str, Spent]) -> dict[str, list[Any]]:
    """The modules in the order of the tree; ``parent`` is a row number, -1 for a root."""
    number = {row.path: i for i, row in enumerate(source.modules)}
    rows = [(row.path, row.text, row.parameters, row.shared_with) for row in source.modules]
    if "" in spent:
        rows.append(("", "ops of no module", 0, ""))
    taken = [spent.get(path, Spent()) for path, *_ in rows]
    return {
        "path": [path for path, *_ in rows],
        "text": [text for _, text, *_ in rows],
        "parameters": [count for *_, count, _ in rows],
        "shared": [shared for *_, shared in rows],
        "parent": [number.get(path.rpartition(".")[0], -1) for path, *_ in rows],
        **{
            name: [getattr(one, name) for one in taken]
            for name in ("ops", "seconds", "flops", "bytes", "kept")
        },
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
